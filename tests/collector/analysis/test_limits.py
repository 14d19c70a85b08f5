from __future__ import annotations

from dataclasses import replace

from tidegauge.analysis.whatif.results import SearchLimits
from tidegauge.analysis.whatif.search import own_limits
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.trace import Action, Trace
from whatif_worlds import GIB, MIB, Event, alloc, failed_request, replay_of, trace_of


def failing(device_free_bytes: int, *, gave_back_bytes: int = 0) -> Trace:
    """One request of 512 MiB that fails as the last event."""
    flush = [Event(Action.SEGMENT_FREE, 0, gave_back_bytes), Event(Action.FREE_COMPLETED, 9, MIB)]
    return trace_of([*alloc(0, MIB), *flush, Event(Action.OOM, device_free_bytes, 512 * MIB)])


def outcome(trace: Trace) -> Replay:
    request = failed_request(512 * MIB, 0)._replace(event=len(trace) - 1, reserved_bytes=2 * GIB)
    return replay_of(2 * GIB, ooms=1, failed=(request,))


def test_the_recorded_cap_is_the_limit() -> None:
    trace = replace(failing(GIB), cap_bytes=7 * GIB)
    assert own_limits(trace, outcome(trace)) == SearchLimits(cap_bytes=7 * GIB)


def test_without_a_failed_request_no_limit_is_known() -> None:
    assert own_limits(trace_of(alloc(0, MIB)), replay_of(GIB)) == SearchLimits()


def test_own_limits_is_the_capacity_if_the_device_had_too_little_left() -> None:
    trace = failing(100 * MIB)
    assert own_limits(trace, outcome(trace)) == SearchLimits(capacity_bytes=2 * GIB + 100 * MIB)


def test_own_limits_counts_segments_released_before_the_request_failed_as_free() -> None:
    trace = failing(400 * MIB, gave_back_bytes=300 * MIB)
    assert own_limits(trace, outcome(trace)) == SearchLimits(capacity_bytes=2 * GIB + 100 * MIB)


def test_own_limits_is_a_cap_if_the_device_had_enough_free() -> None:
    trace = failing(60 * GIB, gave_back_bytes=300 * MIB)
    assert own_limits(trace, outcome(trace)) == SearchLimits(cap_bytes=2 * GIB, below_bytes=2 * GIB + 212 * MIB)


def test_requests_that_only_the_replay_refuses_show_nothing() -> None:
    trace = trace_of(alloc(0, MIB))
    refused = failed_request(512 * MIB, 0)._replace(event=0)
    assert own_limits(trace, replay_of(GIB, ooms=1, failed=(refused,))) == SearchLimits()
