"""Node agent, one process per node: finds and reads rings, queries NVML and /proc, judges its ranks. Imports no Ray."""
