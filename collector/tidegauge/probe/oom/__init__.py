"""Out-of-memory errors of this process: what is remembered, and the last words about them."""
