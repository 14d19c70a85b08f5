"""Recording and alert rules as tables, Prometheus' YAML, and docs/alerts.md. Only ``__main__`` does I/O."""
