"""What the head keeps about one person, in the database and beside it: exported and forgotten."""
