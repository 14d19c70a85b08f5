"""The injection of the probe into pods, and the webhook that does it while pods are created."""
