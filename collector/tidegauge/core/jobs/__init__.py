"""What a job is: its launch, its groups of ranks, its settings, what its scheduler says. Values only."""
