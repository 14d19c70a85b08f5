"""Jobs as values: launches, groups of ranks, settings, and what schedulers report about a job."""
