"""Evidence on this node: checks, compares, stores and reports the files that ranks wrote."""
