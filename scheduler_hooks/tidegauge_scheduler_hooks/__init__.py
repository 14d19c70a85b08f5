"""Policy, execution of its decisions, and one adapter per scheduler.

Nothing here may import the parts that produce values (agent, probe, cluster): ``ports`` declares what it needs of them.
"""
