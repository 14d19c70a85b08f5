"""What the controller counts of itself, and the text that Prometheus reads (text format 0.0.4)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "tidegauge_controller_"


Labels = tuple[tuple[str, str], ...]


class Family(NamedTuple):
    """One metric: ``samples`` are values by labels; a value that is not known has no sample."""

    name: str
    kind: str
    """``counter`` or ``gauge``."""
    help: str
    samples: Mapping[Labels, float]


class StepCounts:
    """How steps ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, step: str, outcome: str) -> None:
        with self._lock:
            self._counts[step, outcome] += 1

    def family(self) -> Family:
        with self._lock:
            counts = dict(self._counts)
        samples: dict[Labels, float] = {
            (("step", step), ("outcome", outcome)): number for (step, outcome), number in counts.items()
        }
        return Family(f"{PREFIX}steps_total", "counter", "Steps on workloads, by how they ended.", samples)


def gauge(name: str, help_text: str, value: float | None) -> Family:
    """One that has no labels."""
    return Family(PREFIX + name, "gauge", help_text, {} if value is None else {(): value})


def exposition(families: Iterable[Family]) -> str:
    """The page; families without a sample are left out."""
    return "".join(_family(family) for family in families if family.samples)


def _family(family: Family) -> str:
    head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    return head + "".join(
        f"{family.name}{_labels(labels)} {value:.17g}\n" for labels, value in sorted(family.samples.items())
    )


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
