"""The controller process: carries out the orders in workloads' annotations, and serves the webhook. It makes no
decisions and uses nothing of the head: the objects say what to do."""
