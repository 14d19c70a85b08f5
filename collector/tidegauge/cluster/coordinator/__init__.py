"""What the coordinator knows: nodes, jobs across ranks, settings and questions for agents."""
