"""The tidegauge command: one module a subcommand."""
