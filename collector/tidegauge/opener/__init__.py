"""The opener: a process with root's two rights and nothing else, which opens other users' files for the agent (ADR 33).

Standard library alone; knows no settings, no network, no token, and reads nothing that a user wrote.
"""
