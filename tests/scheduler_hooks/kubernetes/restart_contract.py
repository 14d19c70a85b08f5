"""What a requeue under Kueue must keep to, whoever the neighbours are: transcriptions of them in memory, or their own
processes on an API server.

Both say how to look at one workload and what others do to it, and inherit the tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import pytest

from scheduler_hooks.kubernetes.workload_samples import templates_of
from tidegauge.core.jobs.kubernetes import ATTEMPT, PROFILE_LABEL, REQUEUE, RESTARTING
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE, FRACTION_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, OwnerKind, at
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.workloads import annotations_of

CURE = {"environ": {FRACTION_VARIABLE: "0.8"}, "alloc_conf": {"expandable_segments": "True"}}
PODS_OF = {"Job": 1, "JobSet": 2, "TrainJob": 1, "PyTorchJob": 2, "RayJob": 2}
"""How many pods the samples have, by kind."""


class RestartSite(ABC):
    """One workload that runs when a test begins, beside our controller and our webhook."""

    kind: str
    unwatched: int = 0
    """How many of its pods are not labelled."""

    @property
    @abstractmethod
    def pods(self) -> Sequence[Any]:
        """Its watched pods, except those that are being deleted."""

    @property
    @abstractmethod
    def obj(self) -> Object:
        """The workload."""

    @property
    @abstractmethod
    def events(self) -> Sequence[tuple[str, str]]:
        """Reasons and notes of all Events of ours."""

    @abstractmethod
    def until(self, true: Callable[[], bool]) -> None:
        """Everybody works until it is true. Raises ``AssertionError`` if it never is."""

    @abstractmethod
    def requeue(self, **changes: Any) -> RequeueOrder:
        """What the head does."""

    @abstractmethod
    def close_queue(self) -> None:
        """Nothing more is admitted; what runs goes on."""

    @abstractmethod
    def open_queue(self) -> None: ...

    @abstractmethod
    def preempt(self) -> None:
        """A workload of higher priority takes the place of this one, until ``leave_room``."""

    @abstractmethod
    def leave_room(self) -> None: ...

    @abstractmethod
    def take_webhook_away(self) -> None: ...

    # What they share

    @property
    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods}

    def until_it_runs(self, *, again_after: AbstractSet[str] = frozenset()) -> None:
        """All of its pods are there, and none of ``again_after``."""
        wanted = PODS_OF[self.kind] - self.unwatched
        self.until(lambda: len(self.uids - again_after) == len(self.uids) == wanted)

    def until_preempted_and_back(self) -> None:
        before = self.uids
        self.preempt()
        self.until(lambda: not self.pods)
        self.leave_room()
        self.until_it_runs(again_after=before)

    def until_requeued(self, **changes: Any) -> None:
        before = self.uids
        self.requeue(**changes)
        self.until_it_runs(again_after=before)

    def check_cured(self, attempt: int) -> None:
        for pod in self.pods:
            found = environ(pod)
            assert annotations_of(pod).get(ATTEMPT) == str(attempt)
            assert found[ATTEMPT_VARIABLE] == str(attempt)
            assert found[FRACTION_VARIABLE] == "0.8"
            assert found["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:128,expandable_segments:True"


def environ(pod: Any) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}


def unlabel_first(kind: OwnerKind, obj: Any) -> None:
    """The first template loses its label, as a head or a driver has none that needs no GPU."""
    del at(obj, templates_of(kind, obj)[0])["metadata"]["labels"][PROFILE_LABEL]


class RestartContract:
    """``open_site(kind, queued=True, unwatched=0)``: a workload of that kind that runs; ``queued``: admitted by Kueue;
    ``unwatched=1``: the pod of its first template is not labelled."""

    @pytest.mark.parametrize("preempted", ["never", "before", "after", "before-and-after"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_requeue_under_kueue_keeps_attempt_and_cure(
        self, open_site: Callable[..., RestartSite], kind: str, preempted: str
    ) -> None:
        site = open_site(kind)
        assert {environ(pod)[ATTEMPT_VARIABLE] for pod in site.pods} == {"0"}
        if "before" in preempted:
            site.until_preempted_and_back()
        site.until_requeued(**CURE)
        site.check_cured(1)
        if "after" in preempted:
            site.until_preempted_and_back()
            site.check_cured(1)

    @pytest.mark.parametrize("kind", KINDS)
    def test_under_kueue_the_restart_is_told_once_and_not_before_a_pod_of_it_runs(
        self, open_site: Callable[..., RestartSite], kind: str
    ) -> None:
        site = open_site(kind)
        before = site.uids
        site.close_queue()
        site.requeue(**CURE)
        site.until(lambda: not site.pods and RESTARTING in annotations_of(site.obj))
        site.until(lambda: REQUEUE not in annotations_of(site.obj))
        assert site.events == [], "it waits in the queue"
        site.open_queue()
        site.until_it_runs(again_after=before)
        site.until(lambda: bool(site.events))
        site.until_preempted_and_back()
        ((reason, note),) = site.events
        assert reason == "GpuMemoryRestarted"
        assert note.startswith("Restarted as attempt 1 with PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128,expandable_")
        assert "TIDEGAUGE_MEMORY_FRACTION=0.8 (pod " in note

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_restart_while_the_webhook_is_away_is_told_as_what_it_is(
        self, open_site: Callable[..., RestartSite], kind: str
    ) -> None:
        site = open_site(kind)
        site.take_webhook_away()
        site.until_requeued(**CURE)
        site.until(lambda: bool(site.events))
        ((reason, note),) = site.events
        assert reason == "GpuMemorySettingsMissing"
        assert "without the attempt number 1, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in note
        assert "was made without Tidegauge's webhook" in note

    @pytest.mark.parametrize("kind", KINDS)
    def test_requeue_without_kueue_keeps_attempt_and_cure(
        self, open_site: Callable[..., RestartSite], kind: str
    ) -> None:
        site = open_site(kind, queued=False)
        site.until_requeued(**CURE)
        site.check_cured(1)
        site.until_requeued(decision="d-2", attempt=2)
        site.check_cured(2)

    @pytest.mark.parametrize("kind", ["JobSet", "PyTorchJob", "RayJob"])
    def test_a_pod_without_the_label_says_nothing_of_the_restart(
        self, open_site: Callable[..., RestartSite], kind: str
    ) -> None:
        site = open_site(kind, unwatched=1)
        site.until_requeued(**CURE)
        site.check_cured(1)
        site.until(lambda: bool(site.events))
        assert [reason for reason, _ in site.events] == ["GpuMemoryRestarted"]
