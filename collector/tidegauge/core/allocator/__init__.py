"""PyTorch's caching allocator as a model: recorded events in (``trace``), every address and every figure out
(``replay``, ``results``).

No file is read here, and nothing of torch is needed. This module imports nothing either: a model that is compiled takes
40 MiB (numba), and most of those who read a ``Trace``, the agent on every node among them, never run it.
"""
