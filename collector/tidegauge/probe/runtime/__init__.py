"""The device runtime of this process: torch behind one seam, allocation history, readings."""
