"""Outputs of Tidegauge for other tools and people. They use values of tidegauge.core and servers of tidegauge.http."""
