"""``tidegauge policy``."""
