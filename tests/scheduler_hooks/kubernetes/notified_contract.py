"""What Tidegauge keeps to beside workloads whose owners it only notifies, whoever controls them: transcriptions in
memory, or the controllers' own processes on an API server.

Both say what runs and what becomes of it, and inherit the tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from fake_ranks import FakeRanks
from sample_views import identity, job_view, rank_summary
from scheduler_hooks.kubernetes.lws_neighbour import GROUP
from scheduler_hooks.kubernetes.restart_contract import environ
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.jobs.kubernetes import INJECTED, SCHEDULER, PodPlace
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.kubernetes.adapter import KubernetesScheduler
from tidegauge_scheduler_hooks.kubernetes.facts_of_workloads import TELLING
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Object, Watches
from tidegauge_scheduler_hooks.kubernetes.workloads import annotations_of, labels_of
from tidegauge_scheduler_hooks.ports import PermanentError, RequeueChanges

VOLCANO, SETS, QUEUED_SETS = "VolcanoJob", "LeaderWorkerSet", "LeaderWorkerSet under Kueue"
RANK_VARIABLE = {VOLCANO: "RANK", SETS: "LWS_WORKER_INDEX", QUEUED_SETS: "LWS_WORKER_INDEX"}
RANKS = {VOLCANO: ["0", "1", "2"], SETS: ["0", "0", "1", "1"], QUEUED_SETS: ["0", "0", "1", "1"]}
"""What ``RANK_VARIABLE`` says in the pods of the samples: a set has two groups of two."""


class Head:
    """The head's adapter, asked about ranks as the coordinator would show them: one in each pod."""

    def __init__(self, api: KubeApi, watches: Watches) -> None:
        self.directory = PodDirectory(watches, KINDS)
        ranks = FakeRanks()
        self.port = KubernetesScheduler(
            api,
            self.directory,
            ranks,
            controller_age_s=lambda: 1.0,
            checkpoints=RankCheckpoint(ranks, sleep=lambda _: None),
            requeue_unasked=True,
        )

    def knows(self, pods: Sequence[Object]) -> bool:
        return all(self.directory.pod_of(pod["metadata"]["uid"]) is not None for pod in pods)

    def jobs(self, pods: Sequence[Object]) -> list[JobView]:
        """By the names and attempts that agents are told; each group of a set is one."""
        found = defaultdict(list)
        for number, pod in enumerate(sorted(pods, key=lambda one: str(one["metadata"]["name"]))):
            facts = self.directory.pod_of(pod["metadata"]["uid"])
            assert facts is not None
            found[facts.job_id, facts.attempt, labels_of(pod).get(GROUP)].append((number, facts))
        return [_view(job_id, attempt, members) for (job_id, attempt, _), members in found.items()]

    def target(self, job: JobView) -> JobTarget:
        """As the policy makes it."""
        return job_facts(job, surroundings([job], {}), self.port.describe([job])[job.key]).target


def _view(job_id: str, attempt: int, members: Sequence[Any]) -> JobView:
    ranks = []
    for rank, (number, facts) in enumerate(members):
        who = identity(rank, job_id=JobId(job_id), attempt=attempt, world_size=len(members))
        place = PodPlace(facts.pod_uid, facts.namespace, facts.pod, "node", job_known=True)
        process = ProcessId(1000 + number, 1)
        ranks.append(rank_summary(rank, identity=who, process=process, uid=0, verdict=OK, pod=place))
    return job_view(
        job_id=JobId(job_id), attempt=attempt, world_size=len(ranks), ranks=tuple(ranks),
        rank_nodes=("n",) * len(ranks), rank_hostnames=("n1",) * len(ranks), scheduler=SCHEDULER,
    )  # fmt: skip


class NotifiedSite(ABC):
    """One workload that runs when a test begins, beside our controller and our webhook."""

    kind: str
    head: Head

    @property
    @abstractmethod
    def pods(self) -> Sequence[Any]:
        """Its pods, except those that are being deleted."""

    @property
    @abstractmethod
    def traces(self) -> Mapping[str, Any]:
        """What would be another had we written to one of its objects, by object."""

    @property
    @abstractmethod
    def events(self) -> Sequence[Object]:
        """Ours."""

    @abstractmethod
    def until(self, true: Callable[[], bool]) -> None:
        """Everybody works until it is true. Raises ``AssertionError`` if it never is."""

    @abstractmethod
    def fail_one(self) -> None:
        """The program in its last pod fails."""

    # What they share

    @property
    def uids(self) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods}

    def until_it_runs(self, *, without: frozenset[str] = frozenset()) -> None:
        """All of its pods, none of ``without``, and the head has heard of them."""

        def runs() -> bool:
            phases = [pod["status"].get("phase") for pod in self.pods]
            wanted = len(RANKS[self.kind])
            return phases == ["Running"] * wanted and not self.uids & without and self.head.knows(self.pods)

        self.until(runs)

    def check_notified_and_untouched(self, decision: str) -> None:
        """Of each of its jobs the owner is notified, nothing else can be done, and no object of it is written."""
        before, port = self.traces, self.head.port
        for number, job in enumerate(self.head.jobs(self.pods)):
            facts, target = port.describe([job])[job.key], self.head.target(job)
            assert (facts.can, facts.requeueable, facts.running) == (TELLING, False, True)
            port.notify(target, "rank 1 leaks", decision_id=f"{decision}-{number}")
            port.annotate(target, "rank 1 leaked", decision_id=f"{decision}-{number}")
            for refused in (
                lambda target=target: port.cap(target, 0.5, decision_id="c"),
                lambda target=target: port.checkpoint(target, decision_id="s", deadline_unix_s=1e12),
                lambda target=target: port.requeue(target, RequeueChanges(), "leaks", decision_id="r"),
                lambda target=target: port.hold(target, "leaks", decision_id="h"),
                lambda target=target: port.cancel(target, "leaks", decision_id="x"),
            ):
                with pytest.raises(PermanentError, match=r": no (cap|checkpoint|requeue|hold|cancel): "):
                    refused()
        assert self.traces == before


class NotifiedContract:
    """``open_site(kind)``: a workload of that kind that runs."""

    @pytest.mark.parametrize("kind", RANKS)
    def test_pods_are_watched_and_keep_the_ranks_that_their_controller_gave(
        self, open_site: Callable[[str], NotifiedSite], kind: str
    ) -> None:
        site = open_site(kind)
        found = [environ(pod) for pod in site.pods]
        assert sorted(one[RANK_VARIABLE[kind]] for one in found) == RANKS[kind]
        assert all(INJECTED in annotations_of(pod) for pod in site.pods)
        assert {one["TIDEGAUGE_ATTEMPT"] for one in found} == {"0"}

    @pytest.mark.parametrize("kind", RANKS)
    def test_the_owner_is_notified_and_nothing_is_touched(
        self, open_site: Callable[[str], NotifiedSite], kind: str
    ) -> None:
        site = open_site(kind)
        site.check_notified_and_untouched("first")
        assert {event["reason"] for event in site.events} == {"GpuMemoryIncident", "GpuMemoryRemark"}

    @pytest.mark.parametrize("kind", RANKS)
    def test_after_the_restart_of_a_group_its_new_pods_are_watched_and_notified_of(
        self, open_site: Callable[[str], NotifiedSite], kind: str
    ) -> None:
        site = open_site(kind)
        last = site.pods[-1]["metadata"]["uid"]
        site.fail_one()
        site.until_it_runs(without=frozenset({last}))
        assert all(INJECTED in annotations_of(pod) for pod in site.pods)
        site.check_notified_and_untouched("second")
