"""What leaves Tidegauge for other tools: /metrics, and files for people. Sees values of tidegauge.core only."""
