"""Commands that show watched jobs and their incidents."""
