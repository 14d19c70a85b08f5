"""Kubernetes sources for attribution on this node: cgroups, kubelet, and the API server through the head."""
