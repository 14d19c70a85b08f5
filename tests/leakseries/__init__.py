"""Synthetic step series of training loops, with and without leaks: for tests and `bench/detector_*.py`.

They look like what the allocator and NVML report (512 B blocks, 2 and 20 MiB segments, 10 Hz) but are made up; real
ones are in tests/data/series.
"""
