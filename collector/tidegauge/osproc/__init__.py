"""Processes of the operating system: who descends from whom, ending them by identity. Standard library only."""
