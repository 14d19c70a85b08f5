"""Fake tensors, devices and calls, with which a model runs without memory."""
