"""The command ``tidegauge attach``."""
