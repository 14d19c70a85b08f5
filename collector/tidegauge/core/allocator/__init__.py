"""PyTorch's caching allocator as a model: recorded events in (``trace``), every address and every figure out
(``replay``, ``results``).

No file is read here, and nothing of torch is needed. This module imports nothing either: what compiles the model
(numba) takes 25 MiB, and most of those who read a ``Trace``, the agent on every node among them, never run it.
"""
