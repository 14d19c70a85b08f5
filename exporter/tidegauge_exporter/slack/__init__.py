"""Slack: messages as Block Kit, threads, the plot. ``notify`` and Alertmanager decide when a message is sent."""
