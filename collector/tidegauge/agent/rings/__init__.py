"""Ring files and launch records in run directories: found, checked, read."""
