"""Attribution: decides which job, user and tenant a process belongs to, and which source is trusted for that."""
