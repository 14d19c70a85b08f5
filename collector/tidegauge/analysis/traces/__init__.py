"""Recorded allocator traces: read, completed by what lived before them, replayed."""
