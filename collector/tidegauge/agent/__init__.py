"""One per node: finds rings, reads them, asks NVML and /proc, judges its ranks. Nothing here knows of Ray."""
