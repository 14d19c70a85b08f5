"""Estimates a training step's memory by running it on tensors without memory, in the user's environment and torch.

Kernels' own temporaries are tables here; what the allocator makes of the requests is ``core.allocator``'s answer.
"""
