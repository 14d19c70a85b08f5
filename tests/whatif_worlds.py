"""Traces of a few events, and outcomes of replays, as tests of the what-if need them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tidegauge.analysis.whatif.candidates import Changes
from tidegauge.analysis.whatif.results import ReplayConfidence, SearchLimits, Trial, WhatIf
from tidegauge.core.allocator.results import FailedRequest, MemoryCurve, Replay
from tidegauge.core.allocator.settings import AllocatorSettings
from tidegauge.core.allocator.trace import Action, Trace

MIB = 1 << 20
GIB = 1 << 30
NO_LIMITS = SearchLimits()


class Event(NamedTuple):
    action: Action
    address: int
    size_bytes: int


def alloc(address: int, size_bytes: int) -> list[Event]:
    return [Event(Action.ALLOC, address, size_bytes)]


def free(address: int, size_bytes: int) -> list[Event]:
    """Given back at once."""
    return [Event(Action.FREE_REQUESTED, address, size_bytes), Event(Action.FREE_COMPLETED, address, size_bytes)]


def trace_of(
    events: Iterable[Event] = (),
    *,
    alloc_conf: str = "",
    torch_version: str | None = "2.13.0+cu130",
    cap_bytes: int | None = None,
    complete: bool = True,
    skipped: Mapping[str, int] | None = None,
) -> Trace:
    """All on one stream, without a clock."""
    rows = list(events)
    return Trace(
        action=array("B", [row.action for row in rows]),
        address=array("Q", [row.address for row in rows]),
        size_bytes=array("Q", [row.size_bytes for row in rows]),
        stream=array("H", [0] * len(rows)),
        time_us=array("q"),
        pool=array("H"),
        stack=array("i"),
        alloc_conf=alloc_conf,
        torch_version=torch_version,
        cap_bytes=cap_bytes,
        complete=complete,
        skipped=skipped or {},
        lost_events=0 if complete else None,
    )


def replay_of(
    peak_reserved_bytes: int,
    *,
    peak_allocated_bytes: int = GIB,
    alloc_retries: int = 0,
    ooms: int = 0,
    device_calls: int = 10,
    address_mismatches: int = 0,
    failed: tuple[FailedRequest, ...] = (),
    curve: MemoryCurve | None = None,
) -> Replay:
    """An outcome of 1,000 events; allocated memory is highest when reserved memory is."""
    return Replay(
        events=1000,
        peak_allocated_bytes=peak_allocated_bytes,
        peak_active_bytes=peak_allocated_bytes,
        peak_reserved_bytes=peak_reserved_bytes,
        allocated_at_peak_reserved_bytes=min(peak_allocated_bytes, peak_reserved_bytes),
        requested_at_peak_bytes=peak_allocated_bytes,
        address_mismatches=address_mismatches,
        first_mismatch=None,
        alloc_retries=alloc_retries,
        ooms=ooms,
        device_allocs=device_calls,
        device_frees=0,
        segments=5,
        allocated_bytes=0,
        reserved_bytes=peak_reserved_bytes,
        failed=failed,
        curve=curve,
        end=None,
    )


def failed_request(wanted_bytes: int, largest_free_bytes: int) -> FailedRequest:
    return FailedRequest(
        event=500,
        requested_bytes=wanted_bytes,
        rounded_bytes=wanted_bytes,
        segment_bytes=wanted_bytes,
        allocated_bytes=GIB,
        reserved_bytes=2 * GIB,
        largest_free_bytes=largest_free_bytes,
        free_bytes=GIB,
        recorded=False,
    )


def curve_of(allocated: Iterable[int], reserved: Iterable[int]) -> MemoryCurve:
    """One point an event."""
    solid, held = array("q", allocated), array("q", reserved)
    return MemoryCurve(array("q", range(len(solid))), solid, held)


def trial_of(
    changes: Changes,
    replay: Replay,
    *,
    alloc_conf: str | None = None,
    confidence: ReplayConfidence = ReplayConfidence.EXACT,
    doubts: tuple[str, ...] = (),
    needs_bytes: int | None = None,
) -> Trial:
    """``alloc_conf``: by default the changes alone, as if nothing were set today."""
    written = ",".join(f"{key}:{value}" for key, value in changes.items() if value is not None)
    conf = written if alloc_conf is None else alloc_conf
    return Trial(conf, changes, AllocatorSettings(), replay, confidence, doubts, needs_bytes)


def whatif_of(
    today: Trial,
    *others: Trial,
    recommended: Trial | None = None,
    needed_bytes: int = GIB,
    torch_version: str | None = "2.13.0+cu130",
    limits: SearchLimits = NO_LIMITS,
    steps: int | None = None,
    died: bool = False,
) -> WhatIf:
    """``others``: best first; all before today's. The first is recommended unless another is named."""
    return WhatIf(
        trials=(*others, today),
        today=today,
        recommended=recommended or (*others, today)[0],
        recorded=today.replay,
        needed_bytes=needed_bytes,
        alloc_conf=today.alloc_conf,
        torch_version=torch_version,
        limits=limits,
        steps=steps,
        died=died,
    )
