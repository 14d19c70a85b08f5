"""``tidegauge top``."""
