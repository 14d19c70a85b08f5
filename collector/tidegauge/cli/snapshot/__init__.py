"""The command ``tidegauge snapshot``."""
