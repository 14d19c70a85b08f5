"""The chaos suite: a real cluster of three nodes on one machine, what is broken in it, and what must hold after."""
