"""The ranks of this node: their readings, verdicts, groups, and whether they live."""
