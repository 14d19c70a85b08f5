"""Explains out-of-memory errors from a text, a log or a snapshot."""
