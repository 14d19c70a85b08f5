"""Device runtime of this process: torch behind one interface, allocation history, readings."""
