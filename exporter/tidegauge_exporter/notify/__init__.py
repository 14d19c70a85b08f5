"""Notifications about incidents: their recipients and their times, independent of Slack, mail and Grafana."""
