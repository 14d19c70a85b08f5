"""This process's files and socket in the run directory."""
