"""The web UI: pages that the coordinator makes for browsers, of what its HTTP API tells. Read only."""
