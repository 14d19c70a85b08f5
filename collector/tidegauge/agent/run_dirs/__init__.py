"""Run directories of this node, where everybody may write: opens files without following links."""
