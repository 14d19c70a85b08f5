"""The probe by the container runtime: a plugin of its Node Resource Interface (NRI), one on each node. What it may put
into a container, how it speaks to the runtime, and the copy of the probe that it keeps on the node; no API server."""
