"""Memory snapshots: PyTorch's pickles and Tidegauge's columns, read without running anything."""
