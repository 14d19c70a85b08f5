"""PyTorch's caching allocator as a model: recorded events in, every address and every figure out.

No file is read here, and nothing of torch is needed.
"""
