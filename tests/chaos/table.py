"""What came of the scenarios: one row each, as a table for people and as JSON."""

from __future__ import annotations

import dataclasses
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.promises import PROMISES

MEASURES = ("whole after", "bound", "longest step", "oldest sample", "/metrics gap", "load")
HEADINGS = ("scenario", *PROMISES, *MEASURES)


@dataclass
class Row:
    """One scenario that was played."""

    name: str
    bound_s: float
    seconds: float | None = None
    """Until full service; ``None``: it did not come back."""
    lacked: list[tuple[float, str]] = field(default_factory=list)
    """What full service lacked, from when on; empty: nothing from then on."""
    broken: dict[str, list[str]] = field(default_factory=dict)
    """By promise: what is wrong."""
    failure: str | None = None
    """Why the scenario could not be played to its end."""
    longest_gap_s: float = 0.0
    stalest_s: float = 0.0
    unseen_s: float = 0.0
    load: float = 0.0
    """The highest load average of a minute."""

    @property
    def passed(self) -> bool:
        in_time = self.seconds is not None and self.seconds <= self.bound_s
        return in_time and self.failure is None and not any(self.broken.values())

    def cells(self) -> list[str]:
        kept = [_kept(self.broken.get(promise)) for promise in PROMISES]
        whole = "never" if self.seconds is None else f"{self.seconds:.1f} s"
        gaps = [f"{self.longest_gap_s:.2f} s", f"{self.stalest_s:.1f} s", f"{self.unseen_s:.1f} s", f"{self.load:.0f}"]
        return [self.name, *kept, whole, f"{self.bound_s:.0f} s", *gaps]

    def measures(self) -> list[str]:
        """What was measured, each by its name."""
        cells = self.cells()[-len(MEASURES) :]
        return [f"{name} {cell}" for name, cell in zip(MEASURES, cells, strict=True)]

    def troubles(self) -> list[str]:
        found = [f"{self.name}: {promise}: {line}" for promise, lines in self.broken.items() for line in lines]
        if self.failure is not None:
            found.append(f"{self.name}: {self.failure}")
        if self.seconds is not None and self.seconds > self.bound_s:
            found.append(f"{self.name}: full service after {self.seconds:.1f} s, not {self.bound_s:.0f} s")
            found += [f"{self.name}: from {since_s:.1f} s on: {what or 'whole'}" for since_s, what in self.lacked]
        return found


def as_table(rows: Sequence[Row]) -> str:
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "scenarios": [{**dataclasses.asdict(row), "passed": row.passed} for row in rows],
    }


def machine() -> str:
    """Where this was measured, in words."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    gib = int(memory.split()[1]) / (1 << 20)
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def _kept(broken: list[str] | None) -> str:
    if broken is None:
        return "?"
    return "NO" if broken else "yes"
