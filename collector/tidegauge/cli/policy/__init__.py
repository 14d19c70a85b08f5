"""The commands ``tidegauge policy``."""
