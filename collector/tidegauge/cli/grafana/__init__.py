"""``tidegauge grafana``."""
