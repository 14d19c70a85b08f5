"""``tidegauge demo``."""
