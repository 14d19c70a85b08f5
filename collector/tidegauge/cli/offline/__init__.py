"""Commands that read files and need no service: detect, diff, export, estimate, replay, whatif."""
