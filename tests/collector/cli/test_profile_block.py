"""The block of ``tidegauge.profile()``: training goes on at its end, and the rest is done when it is asked for."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegauge
from fake_tensors import Module, Optimizer, Parameter, fake_tensor_torch
from profiled_programs import AUTOGRAD, BATCH, FORWARD, GRADS, MIB, OPTIMIZER, Program
from tidegauge.analysis.profile.profile import profile_of_recording
from tidegauge.analysis.profile.recording import NamedRecording, recording_of
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.torch_pickle import torch_snapshot
from tidegauge.analysis.snapshots.traces import Snapshot
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.cli.profile.advising import advise
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.trace import Trace, TraceError
from tidegauge.core.profile.advice import Measure
from tidegauge.probe.evidence.snapshot_packing import pack_columns
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.runtime.rank_snapshot import RawSnapshot

CARD_BYTES = 16 << 30
REPLAYS = "tidegauge.analysis.profile.lives.replay"
SEARCHES = "tidegauge.analysis.profile.advice.settings.whatif"


def program_of(steps: list[list[int]]) -> Trace:
    """Steps that keep blocks of so many MiB for their backward pass, and leave cached memory that fits none."""
    program = Program()
    for sizes in steps:
        batch = program.alloc(2 * MIB, BATCH)
        kept = [program.alloc(size * MIB, FORWARD) for size in sizes]
        seed = program.alloc(512, GRADS)
        gradients = []
        for held in reversed(kept):
            gradients.append(program.alloc(held.size_bytes // 8, AUTOGRAD))
            program.free(held)
        program.free(seed, program.alloc(4 * MIB, OPTIMIZER), *gradients, batch)
    return program.trace()


def snapshot_of(trace: Trace) -> dict[str, Any]:
    ended = replace(trace, end=replay(trace, with_end=True).end)
    return torch_snapshot(Snapshot({0: ended}, trace.stacks, {}))


@contextmanager
def a_process_with(snapshot: dict[str, Any]) -> Iterator[Any]:
    """Its torch has this recording, once."""
    torch = fake_tensor_torch()
    left = [snapshot]
    memory = SimpleNamespace(_record_memory_history=lambda **_: None, _snapshot=left.pop)
    torch.cuda = SimpleNamespace(
        is_available=lambda: True, init=lambda: None, memory=memory, mem_get_info=lambda _: (0, CARD_BYTES)
    )
    torch._C._cuda_isHistoryEnabled = lambda: False
    torch.__version__ = "2.13.0"
    with patch.dict(sys.modules, torch=torch):
        yield torch


def made_at_once(snapshot: dict[str, Any]) -> NamedRecording:
    packed = pack_columns(RawSnapshot(snapshot, {"torch_version": "2.13.0"}, 0.0), Pacer())
    return recording_of(with_beginning(from_packed(packed).traces[0]))


@given(st.lists(st.lists(st.sampled_from([1, 3, 8, 21, 34]), min_size=1, max_size=6), min_size=1, max_size=3))
def test_what_is_made_later_is_what_would_be_made_at_once(steps: list[list[int]]) -> None:
    snapshot = snapshot_of(program_of(steps))
    with a_process_with(snapshot), tidegauge.profile() as block:
        pass
    at_once = made_at_once(snapshot)
    assert block.problem is None
    assert block.profile == profile_of_recording(at_once, modules_missing=block.profile.modules_missing)
    assert block.advice == advise(at_once, card_bytes=CARD_BYTES)


def test_nothing_is_replayed_before_it_is_asked_for_and_each_thing_once() -> None:
    with patch(REPLAYS, wraps=replay) as replays, patch(SEARCHES, side_effect=ValueError) as searches:
        with a_process_with(snapshot_of(program_of([[64, 8, 34], [8, 34, 3, 90]]))), tidegauge.profile() as block:
            pass
        assert (replays.call_count, searches.call_count) == (0, 0)
        assert block.peak.allocated_bytes > 100 * MIB
        assert (replays.call_count, searches.call_count) == (1, 0)
        assert Measure.ACCUMULATION in {one.measure for one in block.advice.measures}
        assert "- Halve the batch" in str(block)
        assert (replays.call_count, searches.call_count) == (1, 1)


def test_a_block_that_has_ended_keeps_nothing_of_the_job_alive() -> None:
    model, optimizer = Module(), Optimizer()
    model._parameters["weight"] = parameter = Parameter(0x1000, 8)
    gone = [weakref.ref(one) for one in (model, optimizer, parameter)]
    with a_process_with(snapshot_of(program_of([[8, 3]]))), tidegauge.profile(model, optimizer) as block:
        pass
    del model, optimizer, parameter
    gc.collect()
    assert [one() for one in gone] == [None, None, None]
    assert block.problem is None
    assert block.advice.peak_bytes == block.peak.allocated_bytes


def test_what_fails_later_is_the_problem_of_the_block() -> None:
    with a_process_with(snapshot_of(program_of([[8, 3]]))), tidegauge.profile() as block:
        pass
    with patch(REPLAYS, side_effect=TraceError(3, "frees what is not there")):
        assert str(block) == block.problem
    assert "no profile: " in str(block)
    with pytest.raises(RuntimeError, match="no profile: "):
        _ = block.advice


def test_a_profile_without_its_advice_says_why() -> None:
    with a_process_with(snapshot_of(program_of([[8, 3]]))), tidegauge.profile() as block:
        pass
    with patch("tidegauge.cli.profile.advising.advice_of", side_effect=OverflowError("too large")):
        assert "no advice: OverflowError: too large" in str(block)
    with pytest.raises(RuntimeError, match="no advice"):
        _ = block.advice
