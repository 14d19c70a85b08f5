"""``tidegauge report``."""
