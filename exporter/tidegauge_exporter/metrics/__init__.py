"""``/metrics``: the table of metrics, its collectors, and the server of a node."""
