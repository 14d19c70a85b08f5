"""Slack: messages as Block Kit, threads, the plot. When something is said is decided in ``notify`` and Alertmanager."""
