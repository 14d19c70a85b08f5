"""Slurm sources for attribution on this node: slurmd and the prolog."""
