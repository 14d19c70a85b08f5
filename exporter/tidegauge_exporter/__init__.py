"""Outputs of Tidegauge for other tools and for people. The package sees values of tidegauge.core only."""
