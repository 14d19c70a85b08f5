"""The dashboards as code: typed builders of Grafana's classic JSON, one module a dashboard. No I/O but ``__main__``."""
