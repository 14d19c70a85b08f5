"""The controller process: finishes what annotations on workloads order, and serves the webhook. Decisions are not made
here, and nothing of the head is: what is to be done stands on the objects."""
