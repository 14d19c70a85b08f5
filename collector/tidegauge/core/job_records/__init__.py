"""What stays of a job when it has ended."""
