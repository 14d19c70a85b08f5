"""Where a block goes when there is room: sizes, pools, best fit, splitting, merging, ties."""

from __future__ import annotations

import pytest

from allocator_traces import MIB, Held, Requests, block_of, segment_of
from tidegauge.core.allocator.beginning import rounded_bytes
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak, parse_settings
from tidegauge.core.allocator.trace import Action, Trace

pytestmark = pytest.mark.timeout(600)

KIB = 1 << 10
VERSION = "2.13.0"


def played(requests: Requests, conf: str = "", *, torch_version: str | None = VERSION) -> Replay:
    return replay(requests.trace(), parse_settings(conf, torch_version), with_end=True)


@pytest.mark.parametrize(
    ("conf", "requested", "rounded"),
    [
        ("", 0, 512),
        ("", 1, 512),
        ("", 512, 512),
        ("", 513, 1024),
        ("", MIB + 1, MIB + 512),
        ("roundup_power2_divisions:4", 512 * 4, 512 * 4),  # as small as that it is rounded to 512 alone
        ("roundup_power2_divisions:4", 512 * 4 + 1, 2560),
        ("roundup_power2_divisions:4", 1025 * KIB, 1280 * KIB),
        ("roundup_power2_divisions:4", 1280 * KIB + 1, 1536 * KIB),
        ("roundup_power2_divisions:4", 2 * MIB, 2 * MIB),
        ("roundup_power2_divisions:1", 3 * MIB + 1, 3 * MIB + 512),  # one division is none
        ("roundup_power2_divisions:[1:8,4:2]", 2 * MIB + 1, 2 * MIB + 512),  # not named, between those that are
        ("roundup_power2_divisions:[1:8,4:2]", 4 * MIB + 1, 6 * MIB),
        ("roundup_power2_divisions:[1:8,4:2]", 9 * KIB, 9 * KIB),  # the first one named is for all below it
        ("roundup_power2_divisions:[1:8,4:2]", 9 * KIB + 1, 10 * KIB),
        ("roundup_power2_divisions:[2:1,>:2]", 33 << 30, 48 << 30),
        ("roundup_power2_divisions:[2:1,>:2]", (65 << 30), 96 << 30),  # everything from 32 GiB on is one bucket
    ],
)
def test_requests_are_rounded(conf: str, requested: int, rounded: int) -> None:
    assert rounded_bytes(requested, parse_settings(conf, VERSION)) == rounded


@pytest.mark.parametrize(
    ("conf", "requested", "segment_bytes", "is_large"),
    [
        ("", 1, 2 * MIB, False),
        ("", MIB, 2 * MIB, False),
        ("", MIB + 1, 20 * MIB, True),
        ("", 10 * MIB - 512, 20 * MIB, True),
        ("", 10 * MIB, 10 * MIB, True),
        ("", 11 * MIB, 12 * MIB, True),
        ("", 100 * MIB + 1, 102 * MIB, True),
        ("large_segment_size_mb:64", 2 * MIB, 64 * MIB, True),
        ("large_segment_size_mb:64", 10 * MIB, 10 * MIB, True),
        ("roundup_power2_divisions:1", MIB - 1, 2 * MIB, False),
        ("roundup_power2_divisions:2", 9 * MIB, 12 * MIB, True),  # the rounded size decides
        ("expandable_segments:True", 1, 2 * MIB, False),
        ("expandable_segments:True", 21 * MIB, 40 * MIB, True),
        ("expandable_segments:True,large_segment_size_mb:64", 21 * MIB, 64 * MIB, True),
    ],
)
def test_segments_are_sized_for_the_first_request(
    conf: str, requested: int, segment_bytes: int, is_large: bool
) -> None:
    requests = Requests()
    requests.alloc(requested)
    outcome = played(requests, conf)
    assert outcome.end is not None
    (segment,) = outcome.end
    assert (segment.total_bytes, segment.is_large) == (segment_bytes, is_large)
    assert (outcome.reserved_bytes, outcome.device_allocs, outcome.segments) == (segment_bytes, 1, 1)


def test_small_and_large_requests_and_each_stream_have_segments_of_their_own() -> None:
    requests = Requests()
    for stream in (0, 1):
        requests.alloc(KIB, stream=stream)
        requests.alloc(2 * MIB, stream=stream)
    outcome = played(requests)
    assert outcome.end is not None
    assert sorted((segment.stream, segment.is_large) for segment in outcome.end) == [
        (0, False), (0, True), (1, False), (1, True),
    ]  # fmt: skip


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    requests = Requests()
    roomy, tight = requests.alloc(60 * MIB), requests.alloc(30 * MIB)
    requests.free(roomy, tight)
    asked = requests.alloc(29 * MIB)
    assert segment_of(played(requests), asked).total_bytes == 30 * MIB


def test_a_block_is_cut_from_the_front_and_the_rest_serves_the_next() -> None:
    requests = Requests()
    first, second = requests.alloc(3 * MIB), requests.alloc(4 * MIB)
    outcome = played(requests)
    assert block_of(outcome, second).address == block_of(outcome, first).address + 3 * MIB
    assert outcome.segments == 1


@pytest.mark.parametrize(("rest_bytes", "blocks"), [(MIB, 1), (MIB + 512, 2)])
def test_a_large_rest_must_be_more_than_1_mib_to_become_a_block(rest_bytes: int, blocks: int) -> None:
    requests = Requests()
    asked = requests.alloc(12 * MIB - rest_bytes)
    outcome = played(requests)
    assert len(segment_of(outcome, asked).blocks) == blocks
    assert outcome.allocated_bytes == (12 * MIB if blocks == 1 else 12 * MIB - rest_bytes)


def test_free_neighbours_become_one_block_in_whatever_order_they_go() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        requests = Requests()
        held = [requests.alloc(6 * MIB) for _ in range(3)]
        requests.free(*(held[place] for place in order))
        requests.alloc(20 * MIB)
        assert played(requests).reserved_bytes == 20 * MIB


def test_max_split_keeps_large_blocks_whole_and_small_requests_away() -> None:
    requests = Requests()
    requests.free(requests.alloc(100 * MIB))
    small, nearly = requests.alloc(20 * MIB), requests.alloc(90 * MIB)
    assert played(requests).reserved_bytes == 190 * MIB  # 20 MiB of the 100 are gone: 90 need a segment
    outcome = played(requests, "max_split_size_mb:64")
    assert segment_of(outcome, small).total_bytes == 20 * MIB
    assert segment_of(outcome, nearly).total_bytes == 100 * MIB
    assert outcome.allocated_bytes == 120 * MIB  # the 90 MiB take all of the block


@pytest.mark.parametrize(
    ("conf", "reserved_bytes"),
    [
        ("max_split_size_mb:64", 180 * MIB),  # 100 MiB are 20 more than 80: too much to waste
        ("max_split_size_mb:64,max_non_split_rounding_mb:21", 100 * MIB),
        ("max_split_size_mb:64,large_segment_size_mb:32", 100 * MIB),  # by default as much as a large segment has
    ],
)
def test_replay_reuses_an_unsplit_block_within_the_non_split_rounding(conf: str, reserved_bytes: int) -> None:
    requests = Requests()
    requests.free(requests.alloc(100 * MIB))
    requests.alloc(80 * MIB)
    assert played(requests, conf).reserved_bytes == reserved_bytes


def two_whole_segments() -> tuple[Requests, Held]:
    requests = Requests()
    requests.free(requests.alloc(12 * MIB), requests.alloc(12 * MIB))
    return requests, requests.alloc(12 * MIB - 512)


@pytest.mark.parametrize(
    ("torch_version", "takes_the_first"),
    [("2.9.1", False), ("2.11.0", False), ("2.12.0", True), ("2.13.0", True), (None, True)],
)
def test_between_equal_segments_the_address_decides_or_the_age(
    torch_version: str | None, takes_the_first: bool
) -> None:
    """The model's own segments lie the lower the later they were made."""
    requests, asked = two_whole_segments()
    outcome = played(requests, torch_version=torch_version)
    assert outcome.end is not None
    segments = sorted(outcome.end, key=lambda segment: -segment.address)
    assert (segment_of(outcome, asked) == segments[0]) == takes_the_first


LOW, HIGH = 0x7E_0000_0000, 0x7F_0000_0000


def tied(*, older_at: int, newer_at: int, in_older: int, answer: int, torch_version: str) -> Trace:
    """A recording of two segments with one free block of 2 MiB each; ``answer`` is where the request for it went.

    In the newer segment it is the block that came with the segment. In the older one it lies ``in_older``: behind what
    has just been cut off an older block, or in front, and then it is a block that was made last of all.
    """
    requests = Requests()
    requests.segment(Action.SEGMENT_ALLOC, older_at, 20 * MIB)
    first = requests.alloc(8 * MIB, at=older_at)
    requests.alloc(9 * MIB, at=older_at + 8 * MIB)
    requests.alloc(3 * MIB, at=older_at + 17 * MIB)
    requests.segment(Action.SEGMENT_ALLOC, newer_at, 20 * MIB)
    requests.alloc(9 * MIB, at=newer_at)
    requests.alloc(9 * MIB, at=newer_at + 9 * MIB)
    requests.free(first)
    if in_older:
        requests.alloc(6 * MIB, at=older_at)
    else:
        front = requests.alloc(2 * MIB - 1, at=newer_at + 18 * MIB)
        cut = requests.alloc(2 * MIB, at=older_at)
        requests.alloc(6 * MIB, at=older_at + 2 * MIB)
        requests.free(front, cut)
    requests.alloc(2 * MIB, at=answer)
    return requests.trace(torch_version=torch_version)


@pytest.mark.parametrize("newer_at", [LOW, HIGH])
@pytest.mark.parametrize("in_older", [0, 6 * MIB])
@pytest.mark.parametrize("torch_version", ["2.11.0", "2.12.0", "2.13.0", "2.15.0"])
def test_the_torch_of_a_recording_decides_between_equal_blocks(
    torch_version: str, in_older: int, newer_at: int
) -> None:
    older_at = LOW + HIGH - newer_at
    takes_older = {"2.11.0": older_at < newer_at, "2.12.0": in_older > 0}.get(torch_version, True)
    answers = older_at + in_older, newer_at + 18 * MIB
    mismatches = [
        replay(
            tied(older_at=older_at, newer_at=newer_at, in_older=in_older, answer=answer, torch_version=torch_version)
        ).address_mismatches
        for answer in answers
    ]
    assert mismatches == ([0, 1] if takes_older else [1, 0])


def test_the_tie_break_is_part_of_the_settings() -> None:
    requests, asked = two_whole_segments()
    places = {
        tie_break: block_of(
            replay(requests.trace(), AllocatorSettings(tie_break=tie_break), with_end=True), asked
        ).address
        for tie_break in TieBreak
    }
    assert places[TieBreak.ADDRESS] < places[TieBreak.BLOCK] == places[TieBreak.SEGMENT]
