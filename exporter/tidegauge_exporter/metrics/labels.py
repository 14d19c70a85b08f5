"""Label values that cannot hurt: short, printable, always text. What a job says about itself passes through here."""

from __future__ import annotations

from tidegauge.core.text import one_line

LONGEST_LABEL = 128
"""Characters. Prometheus sets no limit of its own, but every value is held in memory once per series."""


def label_value(value: object) -> str:
    """``value`` as a label: ``None`` is empty (which Prometheus reads as "no such label"), what cannot be printed
    (control characters, line ends, lone surrogates) becomes a question mark, a long text is cut and ends with
    an ellipsis.
    """
    return "" if value is None else _safe(str(value))


def _safe(text: str) -> str:
    if len(text) > LONGEST_LABEL:
        text = text[: LONGEST_LABEL - 1] + "\u2026"
    return one_line(text, None)
