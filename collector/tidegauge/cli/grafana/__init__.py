"""The commands ``tidegauge grafana``."""
