"""HTTP servers and clients of Tidegauge: connections, TLS, passwords, tokens and roles. Knows no page."""
