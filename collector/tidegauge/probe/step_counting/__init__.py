"""Counts this process's training steps and takes a reading at each step boundary."""
