"""Recording and alert rules as tables, written as Prometheus' YAML and as the runbook. No I/O but ``__main__``."""
