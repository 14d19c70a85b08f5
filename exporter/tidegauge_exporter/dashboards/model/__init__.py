"""Grafana's dashboards as values that write themselves as JSON: panels, queries, fields, variables."""
