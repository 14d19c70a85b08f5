"""The live terminal view, ``tidegauge top``."""
