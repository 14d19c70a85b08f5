"""Recordings whose ring has overflowed: the state before their first event, and every address from there on."""

from __future__ import annotations

import pytest

from integration.allocator.recordings import Recorder, case_name, cases
from integration.allocator.test_every_address import outlines
from integration.allocator.workloads import Workload
from matrix import torches
from tidegauge.core.allocator.replay import replay

pytestmark = [pytest.mark.rig, pytest.mark.timeout(400)]


@pytest.mark.parametrize(("torch_release", "workload"), torches(cases(rings=True)), ids=case_name)
def test_a_recording_without_its_beginning_is_replayed_from_what_lived(
    recorder: Recorder, torch_release: str, workload: Workload
) -> None:
    trace = recorder.recording(torch_release, workload).trace
    outcome = replay(trace, with_end=True)
    assert not trace.complete
    assert trace.start
    assert (outcome.address_mismatches, outcome.first_mismatch) == (0, None)
    assert outcome.end is not None
    assert trace.end is not None
    assert outlines(outcome.end) == outlines(trace.end)
