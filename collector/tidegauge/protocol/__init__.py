"""What agents and the coordinator say to each other: the messages, and their form as bytes, which nodes of neighbouring
releases and of different Pythons understand (docs/adr/0031). No I/O, no transport."""
