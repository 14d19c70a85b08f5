"""Watching: training steps and step boundaries of this process."""
