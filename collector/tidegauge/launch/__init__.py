"""The keeper of ``tidegauge run``: starts, ends and restarts a command, and loads the probe into a running Python
(``tidegauge attach``). Standard library only; knows no service."""
