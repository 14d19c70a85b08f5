"""What a job is known to need against the GPUs that its queue gives it, for Kueue's admission check. Pure, but for one
file that is read."""
