"""Values in, values out: samples, ring layout, verdicts, the leak detector. No I/O, no clock, no third party.

Every module is source-compatible with Python 3.9: the probe imports parts of it inside the training process.
"""
