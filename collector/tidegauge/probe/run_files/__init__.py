"""The files and the socket of this process in the run directory."""
