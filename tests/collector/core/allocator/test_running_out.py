"""When the device or the cap has no more: what is given back first, what is counted, what fails."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator_traces import MIB, Requests, segment_of
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import MAX_FAILED, FailedRequest
from tidegauge.core.allocator.settings import AllocatorSettings, parse_settings

pytestmark = pytest.mark.timeout(600)

DEFAULT = AllocatorSettings()


def test_the_cap_stops_a_request_and_its_free_is_no_error() -> None:
    requests = Requests()
    requests.alloc(30 * MIB)
    refused = requests.alloc(11 * MIB)
    requests.free(refused)
    outcome = replay(requests.trace(), DEFAULT, cap_bytes=40 * MIB)
    assert (outcome.ooms, outcome.alloc_retries, outcome.reserved_bytes) == (1, 1, 30 * MIB)
    assert outcome.failed == (
        FailedRequest(
            event=1,
            requested_bytes=11 * MIB,
            rounded_bytes=11 * MIB,
            segment_bytes=12 * MIB,
            allocated_bytes=30 * MIB,
            reserved_bytes=30 * MIB,
            largest_free_bytes=0,
            free_bytes=0,
            recorded=False,
        ),
    )


def test_a_failure_tells_what_was_free_before_the_cache_was_given_back() -> None:
    requests = Requests()
    blocks = [requests.alloc(10 * MIB) for _ in range(4)]
    requests.free(blocks[0])
    requests.alloc(21 * MIB)
    (failed,) = replay(requests.trace(), DEFAULT, cap_bytes=50 * MIB).failed
    assert (failed.reserved_bytes, failed.allocated_bytes) == (40 * MIB, 30 * MIB)
    assert (failed.largest_free_bytes, failed.free_bytes) == (10 * MIB, 10 * MIB)


def test_the_trace_s_own_cap_holds_unless_another_is_named() -> None:
    requests = Requests()
    requests.alloc(30 * MIB)
    trace = requests.trace(cap_bytes=20 * MIB)
    assert replay(trace, DEFAULT).ooms == 1
    assert replay(trace, DEFAULT, cap_bytes=None).ooms == 0
    assert replay(trace, DEFAULT, cap_bytes=30 * MIB).ooms == 0


def test_a_fraction_in_the_settings_is_a_cap() -> None:
    requests = Requests()
    requests.alloc(30 * MIB)
    trace = requests.trace(total_bytes=100 * MIB)
    assert replay(trace, parse_settings("per_process_memory_fraction:0.29", "2.13.0")).ooms == 1
    assert replay(trace, parse_settings("per_process_memory_fraction:0.3", "2.13.0")).ooms == 0


@pytest.mark.parametrize("limit", ["cap_bytes", "capacity_bytes"])
def test_the_whole_cache_goes_before_a_request_fails(limit: str) -> None:
    requests = Requests()
    unused = [requests.alloc(12 * MIB, stream=0), requests.alloc(1, stream=1)]
    requests.alloc(1, stream=1)
    requests.free(*unused)
    asked = requests.alloc(30 * MIB)
    outcome = replay(requests.trace(), DEFAULT, with_end=True, **{limit: 32 * MIB})  # type: ignore[arg-type]
    assert (outcome.alloc_retries, outcome.ooms, outcome.device_frees) == (1, 0, 1)
    assert segment_of(outcome, asked).total_bytes == 30 * MIB
    assert outcome.reserved_bytes == 32 * MIB  # the small segment of the other stream is still in use


def test_replay_offers_split_blocks_freed_by_the_flush_only_to_the_next_request() -> None:
    """pytorch#189504: the pool is not searched again after the flush."""
    requests = Requests()
    waited_for = requests.alloc(9 * MIB)
    requests.alloc(8 * MIB)
    requests.request_free(waited_for)
    fails, serves = requests.alloc(7 * MIB), requests.alloc(6 * MIB)
    requests.complete_free(waited_for)
    requests.free(fails, serves)
    outcome = replay(requests.trace(), DEFAULT, capacity_bytes=20 * MIB)
    assert [failed.event for failed in outcome.failed] == [3]
    assert (outcome.ooms, outcome.alloc_retries) == (1, 1)


def test_oversize_blocks_go_first_where_there_are_any() -> None:
    requests = Requests()
    kept, oversize = requests.alloc(12 * MIB), requests.alloc(70 * MIB)
    requests.free(kept, oversize)
    requests.alloc(18 * MIB)
    settings = parse_settings("max_split_size_mb:64", "2.13.0")
    outcome = replay(requests.trace(), settings, cap_bytes=90 * MIB, with_end=True)
    assert (outcome.alloc_retries, outcome.device_frees, outcome.reserved_bytes) == (0, 1, 30 * MIB)


def test_garbage_collection_gives_back_the_older_half_without_a_retry() -> None:
    requests = Requests()
    old, young = requests.alloc(20 * MIB), requests.alloc(22 * MIB)
    requests.free(old)
    for _ in range(10):
        requests.free(requests.alloc(19 * MIB + MIB // 2, stream=1))  # searches: time goes by
    requests.free(young)
    requests.alloc(60 * MIB)
    trace = requests.trace()
    settings = parse_settings("garbage_collection_threshold:0.5", "2.13.0")
    outcome = replay(trace, settings, cap_bytes=122 * MIB, with_end=True)
    assert outcome.end is not None
    assert (outcome.alloc_retries, outcome.device_frees) == (0, 1)
    assert sorted(segment.total_bytes // MIB for segment in outcome.end) == [20, 22, 60]
    assert {segment.stream for segment in outcome.end if segment.total_bytes == 20 * MIB} == {1}
    assert replay(trace, settings, cap_bytes=None).device_frees == 0  # a share of no cap is nothing


def test_a_recorded_oom_that_these_settings_avoid_is_counted() -> None:
    requests = Requests()
    requests.alloc(10 * MIB)
    requests.out_of_memory(40 * MIB)
    requests.alloc(11 * MIB)
    trace = requests.trace()
    avoided = replay(trace, DEFAULT)
    assert (avoided.ooms, avoided.recovered_ooms, avoided.failed) == (0, 1, ())
    assert avoided.allocated_bytes == 21 * MIB  # what it got is given back at once, and serves the next
    repeated = replay(trace, DEFAULT, capacity_bytes=30 * MIB)
    assert (repeated.ooms, repeated.recovered_ooms) == (1, 0)
    assert [(failed.event, failed.recorded, failed.requested_bytes) for failed in repeated.failed] == [(1, True, 0)]


def test_no_more_failures_are_told_than_promised() -> None:
    requests = Requests()
    for _ in range(MAX_FAILED + 50):
        requests.alloc(2 * MIB)
    outcome = replay(requests.trace(), DEFAULT, cap_bytes=0)
    assert outcome.ooms == MAX_FAILED + 50
    assert [failed.event for failed in outcome.failed] == list(range(MAX_FAILED))


def test_expandable_segments_hold_the_nominal_size_against_the_cap() -> None:
    """30 MiB more are two handles of 20; the cap is asked for 30."""
    requests = Requests()
    requests.alloc(20 * MIB)
    requests.alloc(30 * MIB)
    expandable = replace(DEFAULT, expandable_segments=True)
    assert replay(requests.trace(), expandable, cap_bytes=50 * MIB).reserved_bytes == 60 * MIB
    assert replay(requests.trace(), expandable, cap_bytes=49 * MIB).ooms == 1
    assert replay(requests.trace(), expandable, capacity_bytes=59 * MIB).ooms == 1
