"""Loops on the head node that open incidents, request evidence, notify owners and act on jobs."""
