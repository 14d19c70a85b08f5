"""The dashboards as code: typed builders of Grafana's classic JSON. Only ``__main__`` does I/O."""
