"""The command ``tidegauge report``."""
