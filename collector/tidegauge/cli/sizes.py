"""Sizes of memory as people write them: ``80GiB``, ``1.5 GB``, ``4096``."""

from __future__ import annotations

import argparse
import re
from fractions import Fraction

from tidegauge.core.allocator_sizes import SMALL_SEGMENT_BYTES
from tidegauge.core.units import IEC_UNITS

_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([A-Za-z]*)", re.ASCII)
_UNITS = {unit.lower(): 1024**power for power, unit in enumerate(IEC_UNITS)}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtpe", start=1)}
_UNITS |= {letter: 1024**power for power, letter in enumerate("kmgtpe", start=1)}
_UNITS[""] = 1


def parse_size(text: str) -> int:
    """Bytes above 0. ``KiB``, ``MiB``, ``GiB`` are powers of 1024, and so is a bare ``G``, as in Slurm's ``--mem``;
    ``GB`` is a power of 1000, as on a card's box. Case does not matter.

    Raises ``argparse.ArgumentTypeError``, so that it may be an argument's type.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    size = 0 if match is None or factor is None else int(Fraction(match[1]) * factor)
    if not 0 < size < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0, such as 80GiB, 512MiB or 85899345920")
    return size


def parse_cap(text: str) -> int:
    """A size that PyTorch could live with: a bare "76" is 76 bytes, and was meant to be gibibytes.

    Raises ``argparse.ArgumentTypeError``.
    """
    size = parse_size(text)
    if size < SMALL_SEGMENT_BYTES:
        raise argparse.ArgumentTypeError(
            f"{text!r} is {size:,} bytes, less than the smallest segment of the PyTorch allocator (2 MiB): add a "
            f"unit, such as 76GiB"
        )
    return size
