"""Texts of messages, independent of any transport."""
