"""Runs inside the training process: standard library and the torch already there. Never raises into training."""
