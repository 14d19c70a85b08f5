"""The keeper of ``tidegauge run``: starts, ends and restarts a command. Standard library only; knows no service."""
