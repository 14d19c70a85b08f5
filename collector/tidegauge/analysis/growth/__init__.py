"""Growth between two snapshots by allocating line, and exports to other tools."""
