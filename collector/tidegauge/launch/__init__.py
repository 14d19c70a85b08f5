"""``tidegauge run``'s keeper: starts a command, ends it, starts it again. Standard library only; knows no service."""
