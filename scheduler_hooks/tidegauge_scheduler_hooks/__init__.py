"""Policy, the carrying out of its decisions, and one adapter per scheduler.

Nothing here may import the parts that make values (agent, probe, cluster): what they are needed for comes by ``ports``.
"""
