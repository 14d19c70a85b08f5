"""The condition ``GpuMemoryUnheld`` of a node, with the rights that the chart gives to the head: beside the kubelet's
own, and taken away again as the documentation says."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.chart_accounts import installed
from integration.kubernetes.target import Answer, Connection, KubeTarget, eventually
from sample_views import gpu_view
from tidegauge.core.detector.unheld import UNHELD_FOR_S
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.node_conditions import (
    HEARTBEAT_S,
    LOOK_EVERY_S,
    UNHELD_CONDITION,
    NodeConditions,
    NodeGpus,
)
from tidegauge_scheduler_hooks.kubernetes.owners import condition

NODES = "/api/v1/nodes"
STRATEGIC = "application/strategic-merge-patch+json"
UNHELD = gpu_view(3, unheld_bytes=2 << 30, unheld_for_s=UNHELD_FOR_S)
FREE = gpu_view(3, unheld_bytes=0)


class Site:
    """A node that its kubelet and the head tell of."""

    def __init__(self, kube: KubeTarget, head: Path) -> None:
        self.name = f"gpu-{uuid.uuid4().hex[:8]}"
        self.path = f"{NODES}/{self.name}"
        self.gpus = (FREE,)
        self.now_s = 0.0
        self._admin = kube.admin
        self._conditions = NodeConditions(
            open_api(head, timeout_s=60),
            lambda: [NodeGpus(self.name, 0.5, self.gpus)],
            submit=lambda call: call(),
            wall_s=lambda: time.time() + self.now_s,
            monotonic_s=lambda: self.now_s,
        )
        self._admin.do("POST", NODES, {"metadata": {"name": self.name}, "spec": {"unschedulable": True}})

    def kubelet(self, ready: str) -> None:
        conditions = [{"type": "Ready", "status": ready, "reason": "Kubelet"}]
        body = {"status": {"$setElementOrder/conditions": [{"type": "Ready"}], "conditions": conditions}}
        self._admin.do("PATCH", f"{self.path}/status", body, content_type=STRATEGIC, fieldManager="kubelet")

    def head(self, *, later_s: float = LOOK_EVERY_S) -> None:
        self.now_s += later_s
        self._conditions.tick()

    def said(self, kind: str) -> Any:
        return condition(self._admin.do("GET", self.path), kind)


@pytest.fixture
def site(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[Site]:
    with installed(kube, namespace, tmp_path, {"nodeConditions": {"enabled": True}}) as release:
        made = Site(kube, release.kubeconfig("head"))
        yield made
        kube.admin.do("DELETE", made.path)


def test_the_head_and_the_kubelet_leave_each_others_conditions(site: Site) -> None:
    site.kubelet("True")
    site.head()
    site.kubelet("False")
    first = site.said(UNHELD_CONDITION)
    site.gpus = (UNHELD,)
    site.head()
    assert (first["status"], site.said(UNHELD_CONDITION)["status"]) == ("False", "True")
    assert site.said("Ready")["status"] == "False"
    site.kubelet("True")
    second = site.said(UNHELD_CONDITION)
    assert "2.0 GiB of GPU 3" in second["message"]
    assert second["lastTransitionTime"] >= first["lastTransitionTime"]
    site.head(later_s=HEARTBEAT_S)
    third = site.said(UNHELD_CONDITION)
    assert third["lastTransitionTime"] == second["lastTransitionTime"]
    assert third["lastHeartbeatTime"] > second["lastHeartbeatTime"]
    assert site.said("Ready")["status"] == "True"


def test_the_admin_takes_the_condition_away(site: Site, admin: Connection) -> None:
    site.kubelet("True")
    site.head()
    patch = {"status": {"conditions": [{"type": UNHELD_CONDITION, "$patch": "delete"}]}}
    admin.do("PATCH", f"{site.path}/status", patch, content_type=STRATEGIC)
    assert [one["type"] for one in admin.do("GET", site.path)["status"]["conditions"]] == ["Ready"]


def test_the_head_may_say_nothing_else_of_a_node(kube: KubeTarget, site: Site, namespace: str, tmp_path: Path) -> None:
    with installed(kube, namespace, tmp_path, {"nodeConditions": {"enabled": True}}) as release:
        head = Connection(release.kubeconfig("head"))
    assert head.ask("PATCH", site.path, {"spec": {"unschedulable": False}}, content_type=STRATEGIC).code == 403
    another = itertools.count()  # what changes nothing is allowed

    def refusal() -> Answer:
        told = {"type": "Ready", "status": "False", "reason": f"R{next(another)}"}
        ready = {"status": {"conditions": [told]}}
        return head.ask("PATCH", f"{site.path}/status", ready, content_type=STRATEGIC)

    answer = eventually(refusal, lambda answer: answer.code != 200)  # a server takes a policy within moments
    assert "Tidegauge may change nothing of a node but its condition" in answer.body["message"]
