"""A simulated fleet: ranks, nodes and their reports at the size of a real one, to measure what Tidegauge costs."""
