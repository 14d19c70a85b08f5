"""The memory profile of a step: `tidegauge profile` on recorded snapshots, and `tidegauge.profile()` in a script."""
