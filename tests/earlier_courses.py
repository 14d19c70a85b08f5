"""Runs of a job whose memory fills and stops, or goes on: their series, and the records that stay of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from leakseries.machine import Row
from sample_views import GIB, MIB, NOW_S, job_record
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.memory_history import MemoryHistory, MemoryPoint

LIMIT = 80 * GIB
MODEL, ACTIVATIONS = 4 * GIB, 6 * GIB
Course = Callable[[int], float]
"""Bytes that are kept at the end of a step."""


def fills(per_step: float = 64 * MIB, until: float = 50 * GIB) -> Course:
    return lambda step: min(MODEL + step * per_step, until)


def rows(course: Course, steps: int, seed: int = 0) -> list[Row]:
    noise, most, found = Random(seed), 0, list[Row]()
    for step in range(steps):
        kept = int(course(step))
        need = kept + int(ACTIVATIONS * noise.uniform(0.9, 1.0))
        most = max(most, need)
        found.append(Row(step, float(step), kept, most + GIB // 2, need, most + GIB))
    return found


def run(course: Course, steps: int, *, number: int, **changes: Any) -> tuple[JobRecord, JobMemory]:
    """The record of a run that went so, and its curve: as the coordinator has it, from readings at any moment."""
    history, moments = MemoryHistory(), Random(number)
    series = rows(course, steps, number)
    for row in series:
        seen = moments.choice((row.allocated, row.peak_allocated))
        history.add(MemoryPoint(row.t, row.step, seen, row.reserved, None))
    peak = max(row.peak_allocated for row in series)
    values: dict[str, Any] = {
        "job": JobKey(str(number), 0, 1001),
        "end": JobEnd.COMPLETED,
        "steps": steps,
        "started_unix_s": NOW_S - 1e6 + number,
        "script": "train.py",
        "script_sha256": "ab",
        "fullest": RankPeak(0, "a", peak, peak + GIB // 2, LIMIT),
        **changes,
    }
    return job_record(**values), JobMemory((values["fullest"],), (RankMemory(0, history.points()),))
