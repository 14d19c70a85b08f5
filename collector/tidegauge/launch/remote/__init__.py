"""Beginning the probe in a Python that already runs, by PEP 768."""
