"""What Slurm says of the processes of this node."""
