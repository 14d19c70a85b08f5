"""Values in, values out: samples, ring layout, verdicts, the leak detector. No I/O, no clock, no third party."""
