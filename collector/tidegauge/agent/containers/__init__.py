"""Run directories of containers, reached through the processes that live in their mount namespaces."""
