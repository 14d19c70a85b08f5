"""Reads memory snapshots, PyTorch's pickles and Tidegauge's columns, without executing anything."""
