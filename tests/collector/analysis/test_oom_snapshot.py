"""Snapshots taken at an out-of-memory error, and what Tidegauge's probe writes into them."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.oom.answer import RECORD_STACKS, explain_elsewhere, explain_snapshot
from tidegauge.analysis.oom.log import KINDS, FoundElsewhere, OomLog
from tidegauge.analysis.oom.snapshot import OomSnapshot, look_into
from tidegauge.analysis.snapshots.reading import read_bytes

DATA = Path(__file__).parents[2] / "data" / "oom"
MIB, GIB = 1 << 20, 1 << 30
FACTS: dict[str, Any] = {
    "device": 0,
    "wanted_bytes": 64 * MIB,
    "free_bytes": 0,
    "limit_bytes": 8 * GIB,
    "unix_s": 1.7e9,
}


def segment(
    device: int = 0, *states: tuple[str, int], stream: int = 0, pool: tuple[int, int] = (0, 0)
) -> dict[str, Any]:
    blocks = [{"size": size, "requested_size": 1, "state": state, "frames": []} for state, size in states]
    return {
        "device": device, "address": (device + 1 << 40) + (stream << 36), "total_size": sum(size for _, size in states),
        "stream": stream, "segment_type": "large", "segment_pool_id": pool, "is_expandable": False, "blocks": blocks,
    }  # fmt: skip


def snapshot(
    *segments: dict[str, Any],
    device: int | None = None,
    cap_bytes: int | None = None,
    trace: list[dict[str, Any]] | None = None,
    facts: dict[str, Any] | None = None,
) -> OomSnapshot:
    whole: dict[str, Any] = {"segments": list(segments), "device_traces": [trace or []], "allocator_settings": {}}
    if facts is not None:
        whole["tidegauge"] = facts
    return look_into(read_bytes(pickle.dumps(whole)), device=device, cap_bytes=cap_bytes)


LIVE = ("active_allocated", 64 * MIB)
FREE = ("inactive", 32 * MIB)


def test_blocks_are_summed_up_by_what_they_are() -> None:
    one = snapshot(segment(0, LIVE, FREE, ("active_pending_free", 4 * MIB)), segment(0, FREE, stream=3, pool=(0, 1)))
    held = one.held
    assert (held.live_bytes, held.free_bytes, held.private_free_bytes, held.pending_bytes) == (
        64 * MIB, 32 * MIB, 32 * MIB, 4 * MIB,
    )  # fmt: skip
    assert one.reserved_bytes == 132 * MIB
    assert one.case is None
    assert not one.at_the_refusal


def test_oom_snapshot_takes_the_failed_request_from_the_probes_facts() -> None:
    one = snapshot(segment(0, LIVE, FREE), facts={**FACTS, "torch_version": "2.13.0"})
    assert one.case is not None
    assert (one.case.wanted_bytes, one.case.limit_bytes, one.case.largest_free_bytes) == (64 * MIB, 8 * GIB, 32 * MIB)
    assert (one.torch_version, one.at_the_refusal) == ("2.13.0", True)


def test_a_request_that_would_double_a_queue_says_so_first() -> None:
    facts = {**FACTS, "wanted_bytes": 612 * MIB}
    one = snapshot(segment(0, ("active_allocated", 600 * MIB), ("active_allocated", 7 * GIB)), facts=facts)
    assert explain_snapshot(one).advice[0].startswith("The request is slightly larger than one live block of 600.0 MiB")


@pytest.mark.parametrize("wrong", [-1, "64", 1.5, None, True, 1 << 70])
def test_a_word_that_cannot_be_is_no_word(wrong: object) -> None:
    assert snapshot(segment(0, LIVE), facts={**FACTS, "wanted_bytes": wrong}).case is None


def test_oom_snapshot_takes_the_failed_request_from_the_history() -> None:
    oom = {"action": "oom", "device_free": 10 * MIB, "size": 9 * MIB, "stream": 0, "time_us": 5}
    case = snapshot(segment(0, LIVE), trace=[oom], cap_bytes=100 * MIB).case
    assert case is not None
    # A block of 9 MiB is cut out of a segment of 20 MiB.
    assert (case.wanted_bytes, case.free_bytes, case.limit_bytes, case.approximate) == (
        20 * MIB,
        10 * MIB,
        100 * MIB,
        False,
    )


def test_a_refusal_with_room_on_the_device_proves_a_cap() -> None:
    oom = {"action": "oom", "device_free": 4 * GIB, "size": 64 * MIB, "stream": 0, "time_us": 5}
    one = snapshot(segment(0, LIVE), trace=[oom])
    assert one.case is not None
    assert (one.case.capped, one.case.approximate) == (True, True)
    assert explain_snapshot(one).kind == "cap"


def test_the_device_is_the_one_that_ran_out() -> None:
    both = (segment(0, LIVE), segment(1, LIVE, LIVE))
    assert snapshot(*both, facts={**FACTS, "device": 1}).device == 1
    assert snapshot(*both, device=0, facts={**FACTS, "device": 1}).case is None
    assert snapshot(*both, device=1).held.live_bytes == 128 * MIB
    with pytest.raises(BadTraceError, match="devices 0, 1: choose one with --device"):
        snapshot(*both)
    with pytest.raises(BadTraceError, match="nothing of device 7; there are devices 0, 1"):
        snapshot(*both, device=7)
    with pytest.raises(BadTraceError, match="held nothing"):
        snapshot()


def test_a_snapshot_without_a_word_on_the_refusal_says_what_is_missing() -> None:
    answer = explain_snapshot(snapshot(segment(0, LIVE)))
    assert (answer.kind, answer.retry) == ("unknown", None)
    assert "Give the error's text as well" in answer.sentence
    assert any(RECORD_STACKS in advice for advice in answer.advice)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_other_memory_has_advice(kind: Any) -> None:
    answer = explain_elsewhere(FoundElsewhere(kind, 3, None, "a line"), OomLog())
    assert (answer.kind, answer.advice) == (kind.kind, (kind.advice,))


@pytest.mark.parametrize("name", ["pieces.snapshot", "pools.snapshot", "needed.oom"])
def test_sums_of_real_snapshots_agree_with_torchs_own(name: str) -> None:
    content = gzip.decompress((DATA / f"{name}.pickle.gz").read_bytes())
    one = look_into(read_bytes(content))
    segments = pickle.loads(content)["segments"]
    assert one.held.live_bytes + one.held.pending_bytes == sum(each["active_size"] for each in segments)
    assert one.reserved_bytes == sum(each["total_size"] for each in segments)
    assert one.held.free_bytes + one.held.private_free_bytes == one.reserved_bytes - one.held.live_bytes
    assert explain_snapshot(one).advice


def test_facts_that_say_that_the_gpu_has_no_memory_are_not_taken_for_its_size() -> None:
    facts = {**FACTS, "wanted_bytes": 0, "limit_bytes": 1, "total_bytes": 0}
    one = snapshot(segment(0, LIVE), facts=facts)
    assert one.case is not None
    assert one.case.usable_bytes is None
    assert explain_snapshot(one).kind == "cap"


def test_the_advice_keeps_what_the_owner_has_set() -> None:
    pieces = [("active_allocated", 32 * MIB), ("inactive", 32 * MIB)] * 4
    facts = {**FACTS, "torch_version": "2.13.0", "limit_bytes": 256 * MIB}
    whole = {
        "segments": [segment(0, *pieces)], "device_traces": [], "tidegauge": facts,
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"},
    }  # fmt: skip
    answer = explain_snapshot(look_into(read_bytes(pickle.dumps(whole))))
    assert answer.kind == "fragmentation"
    # The CUDA name would win over the other, if it is what carries today's.
    assert answer.advice[0] == (
        "unset PYTORCH_CUDA_ALLOC_CONF; export PYTORCH_ALLOC_CONF=roundup_power2_divisions:4,expandable_segments:True"
    )
