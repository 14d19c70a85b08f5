"""Adapter for jobs of a Slurm cluster, by its own commands: squeue, sinfo, scontrol and scancel."""
