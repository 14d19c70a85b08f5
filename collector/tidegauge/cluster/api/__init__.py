"""The HTTP API of the coordinator: its pages, its OpenAPI document, and the client of the commands."""
