"""The probe of one process, its helper thread, and the commands that it answers."""
