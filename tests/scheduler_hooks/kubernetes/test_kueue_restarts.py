"""Attempt and changes of a requeue reach the pods under Kueue, whatever it writes into the templates meanwhile."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from scheduler_hooks.kubernetes.controller_world import Process
from scheduler_hooks.kubernetes.queued_world import QueuedWorld
from tidegauge.core.jobs.kubernetes import ATTEMPT
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE, FRACTION_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import Injector
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.ports import TemporaryError

CURE = {"environ": {FRACTION_VARIABLE: "0.8"}, "alloc_conf": {"expandable_segments": "True"}}


class Site:
    def __init__(self, kind: str, *, queued: bool = True) -> None:
        self.world = QueuedWorld(kind, queued=queued)
        self.process = Process(self.world)
        owners = OwnerReader(self.world.kube, self.process.look.kinds, self.process.look.stores)
        injector = Injector(InjectionOptions("probe"), lambda _: None, settings_of=owners.settings_of)
        self.world.answer = injector.answer
        self.world.submit()
        self.settle()

    def settle(self) -> None:
        """Until everybody, our controller too, has nothing more to do."""
        for _ in range(6):
            self.world.look()
            with suppress(TemporaryError):
                self.process.work()

    def preempt(self) -> None:
        before = {pod["metadata"]["uid"] for pod in self.world.pods}
        self.world.kueue.has_room = False
        self.world.kueue.preempt("train")
        self.settle()
        assert self.world.pods == [], "a workload of higher priority runs now"
        self.world.kueue.has_room = True
        self.settle()
        assert before.isdisjoint(pod["metadata"]["uid"] for pod in self.world.pods)

    def check_cured(self, attempt: int) -> None:
        pods = self.world.pods
        assert pods, "it runs"
        for pod in pods:
            found = environ(pod)
            assert pod["metadata"]["annotations"].get(ATTEMPT) == str(attempt)
            assert found[ATTEMPT_VARIABLE] == str(attempt)
            assert found[FRACTION_VARIABLE] == "0.8"
            assert found["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:128,expandable_segments:True"


def environ(pod: Any) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}


@pytest.mark.parametrize("preempted", ["never", "before", "after", "before-and-after"])
@pytest.mark.parametrize("kind", KINDS)
def test_requeue_under_kueue_keeps_attempt_and_cure(kind: str, preempted: str) -> None:
    site = Site(kind)
    assert {environ(pod)[ATTEMPT_VARIABLE] for pod in site.world.pods} == {"0"}
    if "before" in preempted:
        site.preempt()
    site.world.requeue(**CURE)
    site.settle()
    site.check_cured(1)
    if "after" in preempted:
        site.preempt()
        site.check_cured(1)


@pytest.mark.parametrize("kind", KINDS)
def test_under_kueue_the_restart_is_told_once_and_not_before_a_pod_of_it_runs(kind: str) -> None:
    site = Site(kind)
    site.world.kueue.has_room = False
    site.world.requeue(**CURE)
    site.settle()
    assert site.world.pods == [], "it waits in the queue"
    assert site.world.events == []
    site.world.kueue.has_room = True
    site.settle()
    site.preempt()
    ((reason, note),) = site.world.events
    assert reason == "GpuMemoryRestarted"
    assert note.startswith("Restarted as attempt 1 with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_")
    assert "TIDEGAUGE_MEMORY_FRACTION=0.8 (pod " in note


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_while_the_webhook_is_away_is_told_as_what_it_is(kind: str) -> None:
    site = Site(kind)
    site.world.answer = None
    site.world.requeue(**CURE)
    site.settle()
    ((reason, note),) = site.world.events
    assert reason == "GpuMemorySettingsMissing"
    assert "without the attempt number 1, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in note
    assert "was made without Tidegauge's webhook" in note


@pytest.mark.parametrize("kind", KINDS)
def test_requeue_without_kueue_keeps_attempt_and_cure(kind: str) -> None:
    site = Site(kind, queued=False)
    site.world.requeue(**CURE)
    site.settle()
    site.check_cured(1)
    site.world.requeue(decision="d-2", attempt=2)
    site.settle()
    site.check_cured(2)
