"""Out-of-memory errors explained from a text, a log or a snapshot."""
