"""Policy and scheduler adapters. The policy engine arrives with its own issue; this package holds its place.

Nothing here may import the parts that make values (agent, probe, cluster).
"""
