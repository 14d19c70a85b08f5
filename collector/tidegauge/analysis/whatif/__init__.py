"""Predicts a recorded job's memory under other allocator settings."""
