"""Evidence of a rank about its own memory: windows, snapshots, blocks that grew."""
