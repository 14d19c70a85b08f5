"""One per cluster: jobs across ranks, the HTTP API, and the engine (Ray) that keeps one agent on every node."""
