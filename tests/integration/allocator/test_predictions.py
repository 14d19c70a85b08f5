"""A setting's effect, foretold from the default recording and then measured: the same plan on the real allocator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from integration.allocator import workloads
from integration.allocator.recordings import RELEASES, Recorder, Recording, addresses_decide, case_name, version
from integration.allocator.workloads import Workload
from matrix import torches
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import Replay

pytestmark = [pytest.mark.rig, pytest.mark.timeout(400)]

FORETOLD = {
    "default": (
        "collected-late",
        "capped-amply",
        "divided",
        "divided-by-size",
        "unsplit",
        "large-segments",
        "expandable",
        "expandable-divided",
    ),
    "shared": ("shared-expandable",),
    "training": ("training-expandable",),
}
"""Workloads of one plan that differ in their settings. None of them runs out of memory: a program that does goes on
otherwise, and no model can know how."""


def foretell(recorded: Recording, other: Recording) -> Replay:
    return replay(
        recorded.trace,
        other.settings,
        cap_bytes=other.trace.cap_bytes,
        capacity_bytes=other.room_bytes,
    )


def foretold_cases(release: str) -> Iterator[tuple[str, Workload, Workload]]:
    """Release, recorded workload and the one that is foretold."""
    by_name = {workload.name: workload for workload in workloads.workloads(version(release))}
    for base, names in FORETOLD.items():
        for name, seed in product(names, workloads.SEEDS):
            if f"{name}-{seed}" in by_name:
                yield release, by_name[f"{base}-{seed}"], by_name[f"{name}-{seed}"]


CASES = [case for release in RELEASES for case in foretold_cases(release)]


@pytest.mark.parametrize(("torch_release", "base", "setting"), torches(CASES), ids=case_name)
def test_the_default_recording_foretells_the_peaks_of_a_setting(
    recorder: Recorder, torch_release: str, base: Workload, setting: Workload
) -> None:
    recorded = recorder.recording(torch_release, base)
    other = recorder.recording(torch_release, setting)
    assert recorded.statistics["num_ooms"] == other.statistics["num_ooms"] == 0
    foretold = foretell(recorded, other)
    peaks = (foretold.peak_allocated_bytes, foretold.peak_reserved_bytes)
    measured = (other.statistics["allocated_bytes.all.peak"], other.statistics["reserved_bytes.all.peak"])
    if addresses_decide(other.settings):
        assert peaks == pytest.approx(measured, rel=0.03)
    else:
        assert peaks == measured
