"""Tensors, devices and calls that are only pretended, so that a model runs without memory."""
