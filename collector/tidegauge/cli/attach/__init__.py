"""``tidegauge attach``."""
