"""Activation: loads the probe into a process by a ``.pth`` line, a PYTHONPATH folder or a launcher's environment.

Runs at the start of every interpreter of a job: nothing here may print, raise, or import more than it must.
"""
