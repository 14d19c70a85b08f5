"""Errors for files that cannot be believed. Their text is for people: file, place, expected content."""

from __future__ import annotations


class BadTraceError(ValueError):
    """A file that is no trace, or one that contradicts itself."""


class RefusedPickleError(BadTraceError):
    """A pickle needs more than plain containers, strings and numbers; none of it was executed."""


def shown(value: object, longest: int = 60) -> str:
    """``value`` of an untrusted file for a message: one line, printable, cut. Never raises."""
    try:
        # Containers may be huge, or hold themselves; an int of thousands of digits has no decimal text at all.
        text = repr(value) if isinstance(value, (str, bytes, float, bool, type(None))) else _shown_other(value)
    except ValueError:
        text = f"a {type(value).__name__} out of all range"
    text = text.encode("ascii", "backslashreplace").decode()
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _shown_other(value: object) -> str:
    return str(value) if isinstance(value, int) else f"a {type(value).__name__}"
