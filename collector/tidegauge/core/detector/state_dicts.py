"""State of the detector's parts as plain values, which an agent writes to a file: numbers, texts, lists, mappings."""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

StateDict = Mapping[str, Any]
"""What ``json.dumps`` takes, infinity included."""


def plain(owner: object, names: Iterable[str]) -> dict[str, Any]:
    """The attributes that are numbers, texts or ``None``."""
    return {name: getattr(owner, name) for name in names}


def set_plain(owner: object, names: Iterable[str], state: StateDict) -> None:
    """Raises ``KeyError`` for one that is missing."""
    for name in names:
        setattr(owner, name, state[name])


def packed(numbers: Sequence[float]) -> str:
    """Many numbers as a short text, which is made ten times as fast as their digits. Integers stay integers."""
    try:
        found = array("q", numbers)  # raises where there are fractions
    except TypeError:
        found = array("d", numbers)
    return found.typecode + b64encode(found.tobytes()).decode()


def unpacked(text: str) -> list[Any]:
    """Raises ``ValueError``."""
    return array(text[:1], b64decode(text[1:], validate=True)).tolist()
