"""Out-of-memory errors of this process: the probe's record of them, and its explanation at the end."""
