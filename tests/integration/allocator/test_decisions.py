"""The model without the recording's addresses: from the requests alone, it must take the decisions that were taken."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from integration.allocator.recordings import Recorder, addresses_decide, case_name, cases
from integration.allocator.test_every_address import figures
from integration.allocator.workloads import Workload
from matrix import torches
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.trace import Action, Trace

pytestmark = [pytest.mark.rig, pytest.mark.timeout(400)]

ASKED = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.OOM)


def requests_alone(trace: Trace) -> Trace:
    """What the program asked for, under made-up addresses: nothing of what came of it is left."""
    kept = [event for event, action in enumerate(trace.action) if action in ASKED]
    made_up: dict[int, int] = {}
    addresses = array("Q")
    for event in kept:
        action, address = trace.action[event], trace.address[event]
        if action == Action.ALLOC:
            made_up[address] = event + 1
        addresses.append(address if action == Action.OOM else made_up[address])
        if action == Action.FREE_COMPLETED:
            del made_up[address]
    return replace(
        trace,
        action=array("B", (trace.action[event] for event in kept)),
        address=addresses,
        size_bytes=array("Q", (trace.size_bytes[event] for event in kept)),
        stream=array("H", (trace.stream[event] for event in kept)),
        time_us=array("q"),
        pool=array("H", (trace.pool[event] for event in kept) if trace.pool else ()),
        stack=array("i"),
        stacks=(),
        end=None,
    )


def is_decided_by_requests(workload: Workload) -> bool:
    """Not where the trace alone tells that the cache was emptied, or that a free ended within a flush."""
    return not workload.flushes and not (workload.shared_streams and "tight" in workload.name)


DECIDED = [case for case in cases(rings=False) if is_decided_by_requests(case[1])]


@pytest.mark.parametrize(("torch_release", "workload"), torches(DECIDED), ids=case_name)
def test_requests_alone_lead_to_the_same_decisions(recorder: Recorder, torch_release: str, workload: Workload) -> None:
    recording = recorder.recording(torch_release, workload)
    outcome = replay(
        requests_alone(recording.trace),
        recording.settings,
        cap_bytes=recording.trace.cap_bytes,
        capacity_bytes=recording.room_bytes,
    )
    measured = {key: recording.statistics[key] for key in figures(outcome)}
    if addresses_decide(recording.settings):
        reserved, error_bytes = measured["reserved_bytes.all.peak"], recording.settings.large_segment_bytes
        assert outcome.peak_reserved_bytes == pytest.approx(reserved, rel=0.03, abs=error_bytes)
    else:
        assert figures(outcome) == measured
