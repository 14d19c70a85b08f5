"""What the agent opens of other users' files and processes: behind one port, as it needs rights. Follows no link."""
