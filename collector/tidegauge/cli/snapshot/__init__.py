"""``tidegauge snapshot``."""
