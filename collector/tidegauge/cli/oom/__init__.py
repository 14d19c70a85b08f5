"""The command ``tidegauge oom``."""
