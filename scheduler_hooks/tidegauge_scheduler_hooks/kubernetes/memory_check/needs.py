"""What a job is known to need of each GPU: by its owner's word, or by the records of its earlier runs, in a file that
``tidegauge efficiency --for-admission`` prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tidegauge.core.jobs.kubernetes import NEEDED_MEMORY
from tidegauge.core.text import one_line
from tidegauge.core.units import format_count
from tidegauge_scheduler_hooks.kubernetes.owners import controller_of
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.lines_of_jobs import read_lines

READ_EVERY_S = 60.0
MAX_MEMORY_BYTES = 1 << 50
MAX_QUOTED_CHARS = 40
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{prefix}i": 1 << 10 * power for power, prefix in enumerate("KMGT", start=1)}
_UNIT = "|".join(sorted(_UNITS, key=len, reverse=True))
_MEMORY = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,6}})?)(?:([eE]\+?\d{{1,2}})|\s*({_UNIT})B?)")
_GENERATED = "[bcdfghjklmnpqrstvwxz2456789]{5}"
"""What the API server adds to a ``generateName``."""


class KnownNeed(NamedTuple):
    """A need, and how it is known."""

    needed_bytes: int
    """Of one GPU."""
    source: str
    """For people, after "by"."""


class RunsOfJob(NamedTuple):
    """Earlier runs of one job, or of several with one beginning of their names."""

    needed_bytes: int
    runs: int
    ooms: int

    def __add__(self, other: object) -> RunsOfJob:
        assert isinstance(other, RunsOfJob)
        return RunsOfJob(max(self.needed_bytes, other.needed_bytes), self.runs + other.runs, self.ooms + other.ooms)


def memory_bytes(text: str | None) -> int | None:
    """Bytes of a quantity of Kubernetes (``61Gi``, ``61e9``), or of a person (``61 GiB``); ``None``: it is none."""
    found = _MEMORY.fullmatch((text or "").strip())
    if found is None:
        return None
    number = float(found[1] + (found[2] or "")) * _UNITS[found[3] or ""]
    return int(number) if 0 < number <= MAX_MEMORY_BYTES else None


def stated_need(annotations: Mapping[str, str]) -> KnownNeed | None:
    """The owner's word; none for an invalid one."""
    stated = memory_bytes(annotations.get(NEEDED_MEMORY))
    return None if stated is None else KnownNeed(stated, f"its annotation {NEEDED_MEMORY}")


def unreadable_need(annotations: Mapping[str, str]) -> str | None:
    """Why the owner's word does not count, for people; ``None``: it does, or there is none."""
    said = annotations.get(NEEDED_MEMORY)
    if said is None or memory_bytes(said) is not None:
        return None
    return f"its annotation {NEEDED_MEMORY} is {one_line(said, MAX_QUOTED_CHARS)!r}, no amount of memory as 61Gi is"


class RecordedNeeds:
    """The file of earlier runs. ``None``: there is none. Not thread-safe by itself: reads replace one value."""

    def __init__(self, file: Path | None, *, now_s: Callable[[], float]) -> None:
        self._file = file
        self._now_s = now_s
        self._read_s = float("-inf")
        self._runs: Mapping[tuple[str, str], RunsOfJob] = {}

    def of_job(self, namespace: str, name: str, owner: Object | None) -> KnownNeed | None:
        """What earlier runs of the job needed, or of those that were made with the same ``generateName``, or by the
        same CronJob, if ``owner`` (the job's object) says so. Raises ``OSError``: the file is there, and not
        readable."""
        self._refresh()
        found = self._runs.get((namespace, name))
        title = f"{namespace}/{name}"
        series = None if owner is None else _series(owner)
        if series is not None:
            stem, ending = series
            alike = re.compile(re.escape(stem) + ending)
            found = _sum(runs for (of, other), runs in self._runs.items() if of == namespace and alike.fullmatch(other))
            title = f"{namespace}/{stem}*"
        if found is None:
            return None
        ooms = f", {found.ooms} of which ran out of memory" if found.ooms else ""
        return KnownNeed(
            found.needed_bytes, f"the highest of {format_count(found.runs, 'earlier run')} of {title}{ooms}"
        )

    def _refresh(self) -> None:
        if self._file is None or self._now_s() < self._read_s + READ_EVERY_S:
            return
        self._runs = read_lines(self._file, _runs)
        self._read_s = self._now_s()


def _series(owner: Object) -> tuple[str, str] | None:
    """The common beginning of the names of a series of jobs, and the form of what follows."""
    manager = controller_of(owner)
    if manager is not None and (manager.group, manager.kind) == ("batch", "CronJob"):
        return f"{manager.name}-", r"\d{6,12}"
    stem = owner["metadata"].get("generateName")
    return (stem, _GENERATED) if isinstance(stem, str) and stem else None


def _sum(found: Iterable[RunsOfJob]) -> RunsOfJob | None:
    total: RunsOfJob | None = None
    for one in found:
        total = one if total is None else total + one
    return total


def _runs(said: str) -> RunsOfJob | None:
    """Of bytes, runs and out-of-memory errors, with tabs; ``None`` for what is not so."""
    parts = said.split("\t")
    are_numbers = all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts)
    return RunsOfJob(*map(int, parts)) if len(parts) == 3 and are_numbers else None
