"""Jobs that ``tidegauge run`` started, by the command sockets of their keepers and ranks."""
