"""Texts of messages, and the port to a chat, independent of any transport."""
