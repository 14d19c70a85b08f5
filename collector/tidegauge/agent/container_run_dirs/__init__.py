"""Run directories of containers, opened through the processes that live in their mount namespaces."""
