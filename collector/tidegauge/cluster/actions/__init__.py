"""The loops on the head that open incidents, ask for evidence and act on jobs."""
