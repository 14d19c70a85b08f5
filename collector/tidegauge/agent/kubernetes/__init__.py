"""What Kubernetes says of the processes of this node: cgroups, kubelet, API server."""
