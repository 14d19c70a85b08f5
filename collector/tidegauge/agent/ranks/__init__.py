"""The ranks of this node: their readings, verdicts, groups, and liveness."""
