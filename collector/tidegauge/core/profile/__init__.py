"""The memory profile of a training step: what fills the card at the peak, by category, phase and line. Values alone."""
