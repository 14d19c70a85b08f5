"""Evidence that a rank collects about its own memory: windows, snapshots, blocks that grew."""
