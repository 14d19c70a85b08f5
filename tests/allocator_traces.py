"""Traces for tests of the allocator's model: written request by request, or recorded on an H200 (torch 2.11)."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.trace import Action, KnownBlock, KnownSegment, Trace

RECORDINGS = Path(__file__).parent / "data" / "allocator"
MIB = 1 << 20


class Held(NamedTuple):
    """What a request got, as the trace names it."""

    address: int
    size_bytes: int
    stream: int
    pool: int


class Row(NamedTuple):
    """One event."""

    action: Action
    address: int
    size_bytes: int
    stream: int
    pool: int


class Requests:
    """Writes down what a program asks for. Addresses are made up unless they are given."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._last_address = 0

    def alloc(self, size_bytes: int, *, stream: int = 0, pool: int = 0, at: int | None = None) -> Held:
        self._last_address += 1
        held = Held(self._last_address if at is None else at, size_bytes, stream, pool)
        self.rows.append(Row(Action.ALLOC, *held))
        return held

    def free(self, *held: Held) -> None:
        """At once."""
        for one in held:
            self.request_free(one)
            self.complete_free(one)

    def request_free(self, held: Held) -> None:
        """By the owner; other streams may still use it."""
        self.rows.append(Row(Action.FREE_REQUESTED, *held))

    def complete_free(self, held: Held) -> None:
        self.rows.append(Row(Action.FREE_COMPLETED, *held))

    def out_of_memory(self, rounded_bytes: int) -> None:
        self.rows.append(Row(Action.OOM, 0, rounded_bytes, 0, 0))

    def segment(self, action: Action, address: int, size_bytes: int) -> None:
        """What the device was asked for, or given back."""
        self.rows.append(Row(action, address, size_bytes, 0, 0))

    def trace(
        self,
        *,
        torch_version: str | None = "2.13.0",
        alloc_conf: str = "",
        cap_bytes: int | None = None,
        total_bytes: int | None = None,
        start: tuple[KnownSegment, ...] = (),
        complete: bool = True,
    ) -> Trace:
        rows = self.rows
        return Trace(
            action=array("B", [row.action for row in rows]),
            address=array("Q", [row.address for row in rows]),
            size_bytes=array("Q", [row.size_bytes for row in rows]),
            stream=array("H", [row.stream for row in rows]),
            time_us=array("q"),
            pool=array("H", [row.pool for row in rows]),
            stack=array("i"),
            streams=tuple(range(max((row.stream for row in rows), default=0) + 1)),
            pools=tuple((0, number) for number in range(max((row.pool for row in rows), default=0) + 1)),
            torch_version=torch_version,
            alloc_conf=alloc_conf,
            cap_bytes=cap_bytes,
            total_bytes=total_bytes,
            complete=complete,
            start=start,
        )


def block_of(outcome: Replay, held: Held) -> KnownBlock:
    """Where a request lives at the end; it must be the only one of its size there."""
    return _place_of(outcome, held)[1]


def segment_of(outcome: Replay, held: Held) -> KnownSegment:
    """The segment of `block_of`."""
    return _place_of(outcome, held)[0]


def _place_of(outcome: Replay, held: Held) -> tuple[KnownSegment, KnownBlock]:
    assert outcome.end is not None
    (place,) = [
        (segment, block)
        for segment in outcome.end
        for block in segment.blocks
        if block.state and block.requested_bytes == held.size_bytes
    ]
    return place


class Recorded(NamedTuple):
    """A recording and the allocator's own counters after each of its training steps."""

    trace: Trace
    steps: tuple[Mapping[str, int], ...]


RECORDING_NAMES = tuple(sorted(path.stem for path in RECORDINGS.glob("*.npz")))


@cache
def recorded(name: str) -> Recorded:
    path = RECORDINGS / f"{name}.npz"
    with np.load(path, allow_pickle=False) as arrays:
        columns = json.loads(str(arrays["meta"]))["step_cols"]
        rows = arrays["steps"].tolist()
    return Recorded(open_trace(path), tuple(dict(zip(columns, row, strict=True)) for row in rows))
