"""Operating-system processes: finds descendants, ends processes by identity. Standard library only."""
