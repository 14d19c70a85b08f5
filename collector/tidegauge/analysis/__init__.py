"""Analysis of recorded traces and out-of-memory errors: reads files, needs no service and no GPU.

The allocator's model itself is in ``core.allocator``; what trains without a GPU is in ``estimator``.
"""
