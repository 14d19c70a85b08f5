"""Checkpoints on request: asks the job to save its state, and proves that it did."""
