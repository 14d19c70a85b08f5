"""The knowledge of the coordinator: nodes, jobs across ranks, settings, and orders for agents."""
