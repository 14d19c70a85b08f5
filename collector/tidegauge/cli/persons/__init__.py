"""Commands about the data of one person."""
