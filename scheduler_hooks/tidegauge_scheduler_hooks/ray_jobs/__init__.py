"""Adapter for jobs of users' own Ray clusters, by the REST API of Ray Jobs. Nothing of Ray is imported."""
