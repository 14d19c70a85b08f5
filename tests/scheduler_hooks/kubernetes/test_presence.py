"""Where a run stands, for everything that we, its owner and Kueue may have done to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler_hooks.kubernetes.workload_samples import workload
from tidegauge.core.jobs.kubernetes import ATTEMPT, REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.adapter import presence_of
from tidegauge_scheduler_hooks.kubernetes.intents import CANCEL, HOLD, RequeueOrder, Stopped, encode
from tidegauge_scheduler_hooks.kubernetes.owners import JOB
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, Workload
from tidegauge_scheduler_hooks.ports import Presence

RUNS = {"startTime": "T1", "active": 1}
WAITS = {"startTime": "T1", "conditions": [{"type": "Suspended", "status": "True"}]}
RUN = "u-1#0+0@T1"
POD = {"metadata": {"name": "p", "uid": "p-1"}, "status": {"phase": "Running"}}


def job(
    said: Mapping[str, str] | None = None,
    *,
    status: Any = None,
    suspend: bool = False,
    pods: int = 0,
    queue: bool = False,
) -> Workload:
    """A Job with these annotations."""
    obj = workload("Job", "train")
    obj["metadata"]["uid"] = "u-1"
    obj["metadata"]["annotations"].update(said or {})
    if queue:
        obj["metadata"]["labels"][QUEUE_LABEL] = "q"
    obj["spec"]["suspend"] = suspend
    return Workload(JOB, {**obj, "status": RUNS if status is None else status}, (POD,) * pods)


def ordered(mark: str = RUN) -> dict[str, str]:
    return {REQUEUE: encode(RequeueOrder("d", 1, "leaks", 1.0, mark))}


def stopped(action: str, mark: str = RUN) -> dict[str, str]:
    return {STOPPED: encode(Stopped("d", action, "leaks", 1.0, mark))}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (None, Presence.GONE),
        (job(pods=1), Presence.RUNNING),
        (job(status={"conditions": [{"type": "Complete", "status": "True"}]}), Presence.GONE),
        (job(status={**RUNS, "startTime": "T2"}), Presence.REPLACED),
        (job({ATTEMPT: "1"}), Presence.REPLACED),
        (job(status={**RUNS, "failed": 1}), Presence.REPLACED),
        (job(status={}), Presence.REPLACED),
        # Ended by us
        (job(ordered()), Presence.STOPPING),
        (job(ordered(), suspend=True, status=RUNS), Presence.STOPPING),
        (job(ordered(), suspend=True, status=WAITS, pods=1), Presence.STOPPING),
        (job(ordered(), suspend=True, status=WAITS), Presence.REPLACED),
        (job(stopped(HOLD), suspend=True, status=WAITS), Presence.HELD),
        (job(stopped(CANCEL), suspend=True, status=WAITS), Presence.GONE),
        (job(stopped(CANCEL), suspend=True, status=WAITS, pods=1), Presence.STOPPING),
        # Intents about other runs
        (job(ordered("u-1#7+0@T0")), Presence.RUNNING),
        (job(stopped(CANCEL, "u-1#7+0@T0")), Presence.RUNNING),
        (job(ordered("u-1#1+0@T2"), suspend=True, status=WAITS), Presence.REPLACED),
        (job(stopped(CANCEL, "u-1#1+0@T2"), suspend=True, status=WAITS), Presence.HELD),
        # By others
        (job(suspend=True, status=WAITS), Presence.HELD),
        (job(suspend=True, status=WAITS, queue=True), Presence.REPLACED),
        (job(stopped(HOLD), suspend=True, status=WAITS, queue=True), Presence.HELD),
        # Forged
        (job({REQUEUE: '{"mark": "u-1#0+0@T1"}, '}), Presence.RUNNING),
    ],
)
def test_kubernetes_presence_of_a_run_follows_from_its_workload(now: Workload | None, expected: Presence) -> None:
    assert presence_of(RUN, now) is expected


def test_an_object_that_was_made_anew_under_the_same_name_is_another() -> None:
    assert presence_of("u-0#0+0@T1", job()) is Presence.GONE
