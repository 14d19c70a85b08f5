"""The service on Ray: its supervisor, start and end; it keeps one coordinator, and one agent per node, alive."""
