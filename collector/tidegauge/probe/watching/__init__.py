"""Training steps and step boundaries of this process."""
