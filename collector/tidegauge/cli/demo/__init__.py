"""The command ``tidegauge demo``."""
