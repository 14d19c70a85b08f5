"""Grafana's dashboards as values: panels, queries, fields, variables, and the JSON that they become."""
