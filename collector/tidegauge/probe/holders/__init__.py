"""Holder search: finds what holds the tensors in given allocator blocks, inside the process, between two steps.

This package finds and names holders; its callers decide when, and what to do with the result. It changes nothing and
leaves nothing behind. Source-compatible with Python 3.9.
"""
