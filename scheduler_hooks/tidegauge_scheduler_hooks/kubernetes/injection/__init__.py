"""What is put into a pod that is to be watched, and the webhook that does it: acts on pods being created alone."""
