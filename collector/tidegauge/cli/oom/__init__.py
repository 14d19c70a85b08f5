"""``tidegauge oom``."""
