"""Commands that start, end and describe the service, and ``tidegauge run``."""
