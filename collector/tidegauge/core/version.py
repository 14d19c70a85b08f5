"""Version of Tidegauge, which the probe names in the job and the service to its users."""

__version__ = "0.1.0.dev0"
