"""To which job, user and tenant a process belongs, and whose word counts for that."""
