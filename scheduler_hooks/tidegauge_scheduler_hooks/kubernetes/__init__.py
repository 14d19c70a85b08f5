"""Kubernetes: the coordinator's adapter, and the controller and the webhook beside it."""
