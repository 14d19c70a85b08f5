"""This node's processes as the kernel shows them: identity, descent, memory, sockets."""
