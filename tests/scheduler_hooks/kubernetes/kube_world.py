"""What tests of the Kubernetes adapter share: workloads behind ``FakeKube``, their ranks, and the views of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fake_ranks import FakeRanks
from fakes.kube import FakeKube
from sample_views import identity, job_view, rank_summary
from scheduler_hooks.kubernetes.fake_controllers import FakeControllers, uid_of
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, workload
from scheduler_hooks.port_contract import ContractWorld
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.incidents.actions import JobTarget, SchedulerFacts
from tidegauge.core.jobs.kubernetes import SCHEDULER, PodPlace
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.facts import job_facts, surroundings
from tidegauge_scheduler_hooks.kubernetes.adapter import KubernetesScheduler
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, OwnerKind
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS
from tidegauge_scheduler_hooks.ports import RequeueChanges

UNCHANGED = RequeueChanges()


class KubeWorld(ContractWorld):
    """Workloads of one kind; their ranks answer at once."""

    def __init__(self, kind: str = "Job") -> None:
        self.kind: OwnerKind = KINDS[kind]
        self.kube = FakeKube()
        self.controllers = FakeControllers(self.kube)
        self.ranks = FakeRanks()
        self.controller_age_s: float | None = 1.0
        self.port: KubernetesScheduler = self.another_port()

    def another_port(self, **options: Any) -> KubernetesScheduler:
        """The adapter as another process, which remembers nothing, would have it."""
        self.directory = PodDirectory(self.kube, options.get("kinds", KINDS))
        checkpoints = RankCheckpoint(self.ranks, sleep=lambda _: None)
        return KubernetesScheduler(
            self.kube,
            self.directory,
            self.ranks,
            controller_age_s=lambda: self.controller_age_s,
            **{"checkpoints": checkpoints, **options},
        )

    def start_job(self, *, saves: bool = False, **changes: Any) -> JobView:
        name = f"train-{len(self.controllers.started)}"
        self.kube.put(self.kind.resource, workload(self.kind.name, name, **changes))
        self.controllers.advance()
        view = self.view_of(name)
        if saves:
            self.ranks.savers.add(view.ranks[0].process)
        return view

    def view_now(self, job: JobView) -> JobView:
        return self.view_of(self.running(job)["metadata"]["name"])

    def end_by_itself(self, job: JobView) -> None:
        self.controllers.end(self.kind, self.running(job))

    def starts(self, job: JobView) -> int:
        return len(self.controllers.started.get(uid_of(self.running(job)), ()))

    def alive(self, job: JobView) -> bool:
        return any(pod["status"]["phase"] == "Running" for pod in self.controllers.pods(self.running(job)))

    def saves(self, job: JobView) -> int:
        return len(self.ranks.saved.get(job.ranks[0].process, ()))

    def environ(self, job: JobView) -> dict[str, str]:
        pod = self.controllers.pods(self.running(job))[-1]
        return {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0]["env"]}

    def owner_sees(self, job: JobView) -> str:
        """As ``kubectl describe`` shows it at the end."""
        uid = uid_of(self.running(job))
        return "\n".join(event["note"] for event in self.kube.list(EVENTS) if event["regarding"]["uid"] == uid)

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(10):
            if true():
                return
            self.controllers.advance()
        raise AssertionError("it did not happen")

    def running(self, job: JobView) -> Any:
        """The workload."""
        namespace, _, name = job.job_id.partition("/")
        return self.kube.peek(self.kind.resource, namespace, name)

    def view_of(self, name: str, namespace: str = NAMESPACE, **rank_changes: Any) -> JobView:
        """The workload as the coordinator would see it: one rank, in its latest pod."""
        obj = self.kube.peek(self.kind.resource, namespace, name)
        pod = self.controllers.pods(obj)[-1]
        facts = self.directory.pod_of(uid_of(pod))
        assert facts is not None
        process = ProcessId(1000 + len(self.controllers.started[uid_of(obj)]), int(uid_of(obj)[-12:]))
        who = identity(
            job_id=JobId(facts.job_id), attempt=facts.attempt, world_size=1, torch_version="2.11.0", alloc_conf=None
        )
        place = PodPlace(uid_of(pod), namespace, facts.pod, "node", job_known=True)
        rank = rank_summary(
            0, **{"identity": who, "process": process, "uid": 0, "verdict": OK, "pod": place, **rank_changes}
        )
        return job_view(
            job_id=facts.job_id, attempt=facts.attempt, world_size=1, ranks=(rank,), rank_nodes=("n",),
            rank_hostnames=("n1",), scheduler=SCHEDULER,
        )  # fmt: skip

    def facts(self, job: JobView) -> SchedulerFacts | None:
        return self.port.describe([job]).get(job.key)

    def target(self, job: JobView) -> JobTarget:
        """As the policy makes it."""
        return job_facts(job, surroundings([job], {}), self.facts(job)).target
