"""Recorded allocator traces: reads them, adds the state before their first event, and replays them."""
