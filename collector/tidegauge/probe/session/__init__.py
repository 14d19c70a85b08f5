"""One process's probe, its helper thread, and the commands that it answers."""
