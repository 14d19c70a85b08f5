"""What all parts of the fleet's benchmark share: figures from /proc, bounds, and a table of both."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Bound(NamedTuple):
    """A figure that was measured, and what it may be at most."""

    what: str
    at_most: float
    measured: float
    unit: str

    @property
    def met(self) -> bool:
        return self.measured <= self.at_most


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, all threads, user and system: fields 14 and 15 of proc(5) ``stat``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def private_bytes(pid: int | str = "self") -> int:
    """USS: what ends with the process, from ``smaps_rollup``."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def clean_up_on_sigterm() -> None:
    """End as on Ctrl-C, so that what was begun is ended and deleted."""

    def end(*_: object) -> None:
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, end)


def say(words: str) -> None:
    """Progress, for people."""
    print(words, file=sys.stderr, flush=True)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def bounds_table(bounds: Iterable[Bound]) -> str:
    rows = [
        (one.what, f"{one.at_most:g} {one.unit}", f"{one.measured:.3g} {one.unit}", "yes" if one.met else "NO")
        for one in bounds
    ]
    return table(("what", "bound", "measured", "met"), rows)
