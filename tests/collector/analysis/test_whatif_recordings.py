"""What is predicted from a job's default trace, against recordings of the same job under each setting (an H200, torch
2.11)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tidegauge.analysis.traces.reading import open_trace
from tidegauge.analysis.whatif.candidates import EXPANDABLE, GC, MAX_SPLIT, ROUNDUP, Changes
from tidegauge.analysis.whatif.results import Trial, WhatIf
from tidegauge.analysis.whatif.search import MAX_TRIALS, whatif
from tidegauge.analysis.whatif.words import export_line, findings
from tidegauge.core.allocator.trace import Trace

TRACES = Path(__file__).parents[2] / "data" / "allocator"
MIB = 1 << 20

CHANGES: dict[str, Changes] = {
    "c1": {MAX_SPLIT: "64"},
    "c2": {EXPANDABLE: "True"},
    "c3": {ROUNDUP: "4"},
    "c4": {GC: "0.6"},
}
RECORDED_TWICE = [
    (workload, kind)
    for workload, kinds in {
        "mixed_cnn": ("c1", "c2", "c3", "c4"),
        "variable_length": ("c1", "c2", "c3", "c4"),
        "side_stream": ("c2",),
        "fragmentation_growth": ("c2",),
    }.items()
    for kind in kinds
]


class Recorded(NamedTuple):
    """What torch itself counted."""

    peak_reserved_bytes: int
    alloc_conf: str


def recorded(workload: str, kind: str) -> Recorded:
    with np.load(TRACES / f"{workload}_s1_{kind}.npz", allow_pickle=False) as arrays:
        meta = json.loads(str(arrays["meta"]))
        peak = int(arrays["steps"][:, meta["step_cols"].index("peak_reserved")].max())
    return Recorded(peak, meta["conf"])


def default_trace(workload: str) -> Trace:
    return open_trace(TRACES / f"{workload}_s1_c0.npz")


@cache
def answer(workload: str, kind: str = "c0") -> WhatIf:
    return whatif(open_trace(TRACES / f"{workload}_s1_{kind}.npz"))


def tried(trace: Trace, changes: Changes) -> Trial:
    (found,) = (trial for trial in whatif(trace, candidates=[changes]).trials if not trial.today)
    return found


@pytest.mark.parametrize(("workload", "kind"), [pair for pair in RECORDED_TWICE if pair[1] != "c4"])
def test_the_peak_of_another_setting_is_that_setting_s_own_recording(workload: str, kind: str) -> None:
    own = recorded(workload, kind)
    trial = tried(default_trace(workload), CHANGES[kind])
    assert trial.alloc_conf == own.alloc_conf
    assert trial.replay.peak_reserved_bytes == pytest.approx(own.peak_reserved_bytes, rel=0.01)


@pytest.mark.parametrize("workload", ["mixed_cnn", "variable_length"])
def test_garbage_collection_without_a_cap_changes_nothing_and_costs_no_replay(workload: str) -> None:
    result = whatif(default_trace(workload), candidates=[CHANGES["c4"]])
    assert len(result.trials) == 1
    assert result.today.replay.peak_reserved_bytes == recorded(workload, "c4").peak_reserved_bytes


@pytest.mark.parametrize("workload", ["mixed_cnn", "variable_length", "fragmentation_growth"])
def test_whatif_recommendation_was_the_best_in_the_recordings(workload: str) -> None:
    result = answer(workload)
    assert "expandable_segments:True" in result.recommended.alloc_conf
    kinds = [kind for name, kind in RECORDED_TWICE if name == workload]
    peaks = {kind: recorded(workload, kind).peak_reserved_bytes for kind in ("c0", *kinds)}
    assert min(peaks, key=lambda kind: peaks[kind]) == "c2"
    assert result.today.replay.peak_reserved_bytes == peaks["c0"]
    assert len(result.trials) <= MAX_TRIALS


def test_the_popular_split_size_is_said_to_make_it_worse() -> None:
    result = answer("mixed_cnn")
    told = "\n".join(findings(result))
    assert "worse for this job than today's 2.3 GiB: " in told
    assert "max_split_size_mb:64 (3.8 GiB)" in told
    assert export_line(result) == "export PYTORCH_ALLOC_CONF=expandable_segments:True"


def test_a_split_size_in_force_today_is_found_to_do_harm() -> None:
    result = answer("mixed_cnn", "c1")
    assert result.today.replay.peak_reserved_bytes == recorded("mixed_cnn", "c1").peak_reserved_bytes
    assert "max_split_size_mb, set today, does harm" in "\n".join(findings(result))
    assert not result.recommended.today


def test_under_a_cap_that_today_s_settings_exceed_the_caps_that_are_enough_are_found() -> None:
    trace = default_trace("mixed_cnn")
    result = whatif(trace, cap_bytes=1020 * MIB, candidates=[CHANGES["c1"], CHANGES["c2"]])
    today, best = result.today, result.recommended
    assert today.replay.ooms > 0
    assert best.replay.ooms == 0
    assert today.needs_bytes is not None
    assert best.needs_bytes is not None
    assert result.needed_bytes <= best.needs_bytes < today.needs_bytes <= 2402 * MIB
    again = whatif(trace, cap_bytes=today.needs_bytes, candidates=[])
    assert again.today.replay.ooms == 0


def test_under_a_cap_below_what_is_allocated_no_setting_helps() -> None:
    result = whatif(default_trace("mixed_cnn"), cap_bytes=800 * MIB, candidates=list(CHANGES.values()))
    assert all(trial.replay.ooms for trial in result.trials)
    assert "No setting helps: allocated memory itself is the problem" in "\n".join(findings(result))
