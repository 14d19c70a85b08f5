"""Runs a training step on tensors without memory, to say what it would need; in the user's environment, with its torch.

Kernels' own temporaries are tables here; what the allocator makes of the requests is ``core.allocator``'s answer.
"""
