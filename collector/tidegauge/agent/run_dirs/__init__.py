"""Run directories on this node, where everybody may write: opened without following anything."""
