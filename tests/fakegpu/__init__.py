"""A GPU that is not there: stub CUDA libraries under the real CUDA build of PyTorch, and how to run programs on them.

Test equipment only: nothing of it is installed with Tidegauge, and nothing in Tidegauge knows that it exists.
"""
