"""The ``tidegauge`` command line, with one module or folder per command."""
