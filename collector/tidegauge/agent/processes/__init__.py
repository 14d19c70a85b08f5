"""Processes of this node as the kernel shows them: identity, descent, memory, sockets."""
