"""Grafana over its HTTP API: folder, data source, dashboards, annotations."""
