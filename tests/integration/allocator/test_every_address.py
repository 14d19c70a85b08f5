"""The model against PyTorch's own allocator: every address, every figure and the last state, on several releases."""

from __future__ import annotations

import pytest

from integration.allocator.recordings import Recorder, case_name, cases
from integration.allocator.workloads import Workload
from matrix import torches
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.trace import BlockState, KnownSegment

pytestmark = [pytest.mark.rig, pytest.mark.timeout(400)]

FIGURES = {
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "device_allocs": "num_device_alloc",
    "device_frees": "num_device_free",
}
"""Of a replay, with the key of ``memory_stats()`` that says the same."""


def figures(outcome: Replay) -> dict[str, int]:
    return {key: getattr(outcome, name) for name, key in FIGURES.items()}


def hides_retries(workload: Workload) -> bool:
    """Whether the trace shows a request that was tried again after a flush as it shows ``empty_cache()`` and a request.

    So it does where the program calls that as well, or where a block that another stream had held would serve: its
    free ended in the flush, and looks as if it had been before.
    """
    return workload.flushes > 0 or workload.shared_streams


def blocks(segments: tuple[KnownSegment, ...]) -> list[tuple[int, int, int, BlockState]]:
    """In order of address; a pool and a stream are a segment's, so they are compared with it."""
    return sorted(
        (block.address, block.size_bytes, block.requested_bytes, block.state)
        for segment in segments
        for block in segment.blocks
    )


def outlines(segments: tuple[KnownSegment, ...]) -> list[tuple[int, int, int, bool, bool]]:
    return sorted((s.address, s.total_bytes, s.stream, s.is_large, s.is_expandable) for s in segments)


@pytest.mark.parametrize(("torch_release", "workload"), torches(cases(rings=False)), ids=case_name)
def test_a_replay_repeats_the_real_allocator(recorder: Recorder, torch_release: str, workload: Workload) -> None:
    recording = recorder.recording(torch_release, workload)
    outcome = replay(recording.trace, with_end=True)
    assert (outcome.address_mismatches, outcome.first_mismatch) == (0, None)
    told = set(FIGURES.values()) - ({"num_alloc_retries"} if hides_retries(workload) else set())
    assert {key: figures(outcome)[key] for key in told} == {key: recording.statistics[key] for key in told}
    assert outcome.end is not None
    assert recording.trace.end is not None
    assert outlines(outcome.end) == outlines(recording.trace.end)
    assert blocks(outcome.end) == blocks(recording.trace.end)
    assert outcome.segments == len(recording.trace.end)
    assert not recording.trace.skipped


@pytest.mark.parametrize("told", ["2.11.0", "2.12.0", "2.13.0"])
@pytest.mark.parametrize("torch_release", torches(["2.11.0", "2.12.0", "2.13.0"]))
def test_replay_has_no_address_mismatch_only_with_its_own_release(
    recorder: Recorder, torch_release: str, told: str
) -> None:
    """So the test above can fail, and a wrong version is noticed by whoever looks at the mismatches."""
    workload = next(workload for _, workload in cases(rings=False) if workload.name == "default-1")
    recording = recorder.recording(torch_release, workload, told=told)
    assert (replay(recording.trace).address_mismatches == 0) == (torch_release == told)
