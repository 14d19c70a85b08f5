"""How the probe gets into a process: a ``.pth`` line, a folder for PYTHONPATH, the environment that a launcher sets.

Runs at the start of every interpreter of a job: nothing here may print, raise, or import more than it must.
"""
