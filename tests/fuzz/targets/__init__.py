"""What is fuzzed: one module per kind of input, each with what has to hold."""
