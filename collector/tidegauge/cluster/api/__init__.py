"""The HTTP API of the coordinator: its pages, its description, and the client of the commands."""
