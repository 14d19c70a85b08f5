"""Starts the probe in a running Python, by PEP 768."""
