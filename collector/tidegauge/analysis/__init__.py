"""What a person asks of a recorded trace or an out-of-memory message: reads files, needs no service and no GPU.

The allocator's model itself is in ``core.allocator``; what trains without a GPU is in ``estimator``.
"""
