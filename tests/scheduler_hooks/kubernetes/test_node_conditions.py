"""The condition ``GpuMemoryUnheld`` of nodes: when it changes, and that nobody else's is touched."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from fakes.kube import FakeKube
from sample_views import gpu_view
from tidegauge.core.detector.unheld import UNHELD_FOR_S
from tidegauge.core.views import GpuView
from tidegauge_scheduler_hooks.kubernetes.node_conditions import (
    HEARTBEAT_S,
    LOOK_EVERY_S,
    MAX_AT_ONCE,
    MAX_NAMED_GPUS,
    NO_NODE_FOR_S,
    REFUSED_FOR_S,
    SILENT_S,
    UNHELD_CONDITION,
    NodeConditions,
    NodeGpus,
    judged,
)
from tidegauge_scheduler_hooks.kubernetes.owners import condition, timestamp
from tidegauge_scheduler_hooks.kubernetes.ports import NODES, ForbiddenError
from tidegauge_scheduler_hooks.ports import TemporaryError

GIB = 1 << 30
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
FREE = gpu_view(0, unheld_bytes=0)
HELD = gpu_view(0, unheld_bytes=2 * GIB, unheld_for_s=UNHELD_FOR_S)
WAITING = gpu_view(0, unheld_bytes=2 * GIB, unheld_for_s=UNHELD_FOR_S - 1)
UNKNOWN = gpu_view(0)


class Site:
    """Nodes of a cluster whose agents report each second."""

    def __init__(self, *names: str) -> None:
        self.kube = FakeKube()
        self.gpus: dict[str, tuple[GpuView, ...]] = {}
        self.ages_s: dict[str, float] = {}
        self.now_s = 0.0
        for name in names or ("n1",):
            self.kube.put(NODES, {"metadata": {"name": name}, "status": {"conditions": [READY]}})
            self.gpus[name], self.ages_s[name] = (FREE,), 0.5
        self.works: list[Callable[[], None]] = []
        self.component = self.another()

    def another(self) -> NodeConditions:
        """As another head would have it."""
        return NodeConditions(
            self.kube,
            lambda: [NodeGpus(name, self.ages_s[name], gpus) for name, gpus in self.gpus.items()],
            submit=self.works.append,
            wall_s=lambda: 1e9 + self.now_s,
            monotonic_s=lambda: self.now_s,
        )

    def pass_s(self, seconds: float = LOOK_EVERY_S) -> None:
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.component.tick()
            while self.works:
                self.works.pop(0)()

    def says(self, name: str = "n1") -> Any:
        return condition(self.kube.peek(NODES, None, name), UNHELD_CONDITION)

    def writes(self) -> int:
        return len(self.kube.called("patch"))


@pytest.fixture
def site() -> Site:
    return Site()


def test_condition_says_which_gpu_holds_how_much_and_goes_when_it_is_free(site: Site) -> None:
    site.pass_s()
    first = site.says()
    assert (first["status"], first["reason"]) == ("False", "NoMemoryWithoutProcess")
    site.gpus["n1"] = (HELD, gpu_view(1, unheld_bytes=0))
    site.pass_s()
    told = site.says()
    assert (told["status"], told["reason"]) == ("True", "MemoryWithoutProcess")
    assert told["message"] == f"In use, and held by no process: 2.0 GiB of GPU 0 ({HELD.uuid})"
    assert first["lastTransitionTime"] < told["lastTransitionTime"] == told["lastHeartbeatTime"]
    site.gpus["n1"] = (FREE,)
    site.pass_s()
    assert site.says()["status"] == "False"
    conditions = site.kube.peek(NODES, None, "n1")["status"]["conditions"]
    assert conditions[0] == READY
    assert len(conditions) == 2


def test_same_state_is_written_again_as_a_heartbeat_alone(site: Site) -> None:
    site.gpus["n1"] = (HELD,)
    site.pass_s()
    first = site.says()
    site.gpus["n1"] = (gpu_view(0, unheld_bytes=3 * GIB, unheld_for_s=UNHELD_FOR_S + 9),)
    site.pass_s(HEARTBEAT_S / 2)
    assert site.writes() == 1
    site.pass_s(HEARTBEAT_S / 2)
    assert site.writes() == 2
    again = site.says()
    assert "3.0 GiB" in again["message"]
    assert again["lastTransitionTime"] == first["lastTransitionTime"] < again["lastHeartbeatTime"]


def test_another_head_goes_on_from_the_condition_that_is_there(site: Site) -> None:
    site.gpus["n1"] = (HELD,)
    site.pass_s()
    since = site.says()["lastTransitionTime"]
    site.component = site.another()
    site.pass_s()
    assert (site.says()["status"], site.says()["lastTransitionTime"]) == ("True", since)
    assert site.says()["lastHeartbeatTime"] > since


@pytest.mark.parametrize("gpus", [(WAITING,), (UNKNOWN,), (FREE, UNKNOWN), ()])
def test_nothing_is_taken_back_while_nothing_contradicts_it(site: Site, gpus: tuple[GpuView, ...]) -> None:
    """A new agent waits, and cannot tell beside a process; a driver that is away tells nothing."""
    site.gpus["n1"] = (HELD,)
    site.pass_s()
    site.gpus["n1"] = gpus
    site.pass_s(2 * HEARTBEAT_S)
    assert site.says()["status"] == "True"


@pytest.mark.parametrize(
    ("gpus", "status"),
    [((FREE, UNKNOWN), "False"), ((WAITING,), "False"), ((UNKNOWN,), "Unknown"), ((), "Unknown"), ((HELD,), "True")],
)
def test_what_is_said_first(gpus: tuple[GpuView, ...], status: str) -> None:
    verdict = judged(gpus, was_unheld=False)
    assert verdict is not None
    assert verdict.status == status


def test_few_gpus_are_named() -> None:
    gpus = [gpu_view(n, unheld_bytes=GIB, unheld_for_s=UNHELD_FOR_S) for n in range(MAX_NAMED_GPUS + 1)]
    verdict = judged(gpus, was_unheld=False)
    assert verdict is not None
    assert verdict.message.endswith(", and of 1 more GPU")
    assert verdict.message.count("GiB") == MAX_NAMED_GPUS


def test_node_without_an_agent_for_long_is_unknown(site: Site) -> None:
    site.gpus["n1"] = (HELD,)
    site.pass_s()
    site.ages_s["n1"] = SILENT_S + 1
    site.pass_s()
    assert (site.says()["status"], site.says()["reason"]) == ("Unknown", "NoAgent")
    site.ages_s["n1"] = 0.5
    site.pass_s()
    assert site.says()["status"] == "True"
    del site.gpus["n1"]  # the coordinator has forgotten it
    site.pass_s(SILENT_S / 2)
    assert site.says()["status"] == "True"
    site.pass_s(SILENT_S)
    assert site.says()["status"] == "Unknown"


def test_node_without_gpus_or_silent_from_the_start_is_not_told_of(site: Site) -> None:
    site.ages_s["n1"] = SILENT_S + 1
    site.pass_s(60)
    site.ages_s["n1"], site.gpus["n1"] = 0.5, ()
    site.pass_s(60)
    assert site.kube.calls == []


def test_latest_report_of_a_host_counts() -> None:
    site = Site()
    old = NodeGpus("n1", 500.0, (HELD,))
    site.component = NodeConditions(
        site.kube, lambda: [NodeGpus("n1", 0.5, (FREE,)), old], submit=site.works.append,
        wall_s=lambda: 1e9, monotonic_s=lambda: site.now_s,
    )  # fmt: skip
    site.pass_s()
    assert site.says()["status"] == "False"


@pytest.mark.parametrize("name", ["of-slurm", ""])
def test_host_that_is_no_node_here_hinders_no_other_and_is_asked_for_rarely(name: str) -> None:
    site = Site()
    site.gpus = {name: (FREE,), **site.gpus}
    site.ages_s[name] = 0.5
    site.pass_s(60)
    assert site.says()["status"] == "False"
    assert len([call for call in site.kube.called("get") if call.name == name]) == 1
    site.pass_s(NO_NODE_FOR_S)
    assert len([call for call in site.kube.called("get") if call.name == name]) == 2


def test_missing_right_is_said_once_and_tried_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        site.kube.fail_next(ForbiddenError("may not patch nodes/status"), verb="patch", kind="Node")
    site.pass_s(LOOK_EVERY_S)
    assert site.component.problem == "GpuMemoryUnheld is not written: may not patch nodes/status"
    site.pass_s(REFUSED_FOR_S + LOOK_EVERY_S)
    assert site.writes() == 2
    assert len([one for one in caplog.records if "conditions of nodes are not written" in one.getMessage()]) == 1
    site.pass_s(REFUSED_FOR_S)
    assert site.says()["status"] == "False"
    assert site.component.problem is None


def test_what_was_due_while_it_could_not_be_written_outlasts_a_new_agent(site: Site) -> None:
    site.gpus["n1"] = (HELD,)
    for _ in range(3):
        site.kube.fail_next(ForbiddenError("may not patch nodes/status"), verb="patch", kind="Node")
    site.pass_s(2 * REFUSED_FOR_S)
    site.gpus["n1"] = (WAITING,)
    site.pass_s(2 * REFUSED_FOR_S)
    assert site.says()["status"] == "True"


def test_api_server_that_is_away_is_asked_again_soon(site: Site) -> None:
    site.kube.fail_next(TemporaryError("away"), verb="get", kind="Node")
    site.pass_s(2 * LOOK_EVERY_S)
    assert site.says()["lastHeartbeatTime"] <= timestamp(1e9 + 2 * LOOK_EVERY_S)


def test_large_cluster_is_told_of_in_parts() -> None:
    site = Site(*(f"n{number}" for number in range(2 * MAX_AT_ONCE)))
    site.pass_s(1)
    assert site.writes() == MAX_AT_ONCE
    site.pass_s(LOOK_EVERY_S)
    assert site.writes() == 2 * MAX_AT_ONCE
