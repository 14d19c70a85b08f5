"""Adapter for jobs that ``tidegauge run`` started, over the command sockets of their keepers and ranks."""
