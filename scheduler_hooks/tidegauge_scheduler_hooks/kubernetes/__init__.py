"""Kubernetes: the adapter that the coordinator acts through, and the controller and the webhook beside it."""
