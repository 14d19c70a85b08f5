"""Attribution: decides which job a rank belongs to, by its claim and by evidence from slurmd, prolog, head and kubelet.

slurmd decides where it answers, with the cgroup that slurmstepd made as second source. In a pod the head decides, which
asks the API server; until the head answers, the kubelet does. A process that none of them knows may name its own job,
but not a Slurm job or a Kubernetes workload: nobody can add ranks to another user's job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeVar

from tidegauge.agent.kubernetes.pods import PodBook
from tidegauge.agent.ports import (
    GpuReading,
    HeldBy,
    HolderSource,
    NoHolders,
    NoPlace,
    ProcessFacts,
    RecordSource,
    StepSource,
)
from tidegauge.core.ids import JobId, RankIdentity, made_up_job_id
from tidegauge.core.jobs.kubernetes import SCHEDULER as KUBERNETES
from tidegauge.core.jobs.kubernetes import PodCgroup, PodFacts, PodPlace, job_id, namespace_of
from tidegauge.core.jobs.slurm import SCHEDULER as SLURM
from tidegauge.core.jobs.slurm import SlurmPlace, array_name

MAX_ATTEMPT = 1 << 31
"""As in a ring."""
_SLURM_ID = re.compile(r"[0-9]+(_[0-9]+)?")

T = TypeVar("T")


class PodProof(NamedTuple):
    """The pod that a process is in, as cgroup, head and kubelet name it."""

    cgroup: PodCgroup
    facts: PodFacts | None = None
    """From the API server, through the head; ``None`` while it does not answer."""
    holders: frozenset[HeldBy] = frozenset()
    """Containers to which the kubelet gave every GPU that the driver lists the process on."""


class IdentityProof(NamedTuple):
    """Evidence of a process's job that does not come from the process itself."""

    place: SlurmPlace | None = None
    """From slurmd, else from the kernel."""
    restarts: int | None = None
    """Of the job, from the prolog."""
    outside: bool = False
    """slurmd answers and knows no such process, nor does the kernel place it in a job."""
    of_another_user: bool = False
    """The prolog says that the job belongs to another user than the process."""
    pod: PodProof | None = None
    """``None`` for a process in no pod, and for one that slurmd knows."""


class Attribution(NamedTuple):
    """A rank's identity after correction, and the claims that were overruled."""

    identity: RankIdentity
    overruled: frozenset[str] = frozenset()
    """``job_id``, ``attempt``, ``scheduler``, ``job_user``."""
    pod: PodPlace | None = None
    user_name: str | None = None
    """Owner of the job; ``None``: the user of the process's uid, which in a pod is nobody's login."""


def attribute(claimed: RankIdentity, known: IdentityProof, facts: ProcessFacts, *, hostname: str) -> Attribution:
    """Correct ``claimed`` by the evidence. The host is always our own; a claim that no source can check stays."""
    identity = claimed._replace(hostname=hostname)
    if known.place is not None:
        return _in_slurm(identity, known, known.place)
    if known.pod is None:
        return _outside_pods(identity, facts, outside_slurm=known.outside)
    if known.pod.facts is None:
        return _in_unknown_pod(identity, known.pod, facts)
    return _in_pod(identity, known.pod, known.pod.facts)


def _in_slurm(identity: RankIdentity, known: IdentityProof, place: SlurmPlace) -> Attribution:
    overruled = {"job_user"} if known.of_another_user else set()
    if not _names(identity.job_id, place):
        overruled.add("job_id")
    identity = identity._replace(job_id=place.job_id, scheduler=SLURM)
    if known.restarts is not None:
        attempt = _attempt(identity, known.restarts)
        if attempt != identity.attempt:
            overruled.add("attempt")
        identity = identity._replace(attempt=attempt)
    return Attribution(identity, frozenset(overruled))


def _in_pod(identity: RankIdentity, known: PodProof, facts: PodFacts) -> Attribution:
    """Only a claim of another namespace is a lie: a pod's environment names the owner that it had at its start, and a
    probe without such variables makes up a name."""
    overruled = {"job_id"} if _is_of_another(identity.job_id, facts.namespace) else set()
    container = facts.containers.get(known.cgroup.container_id or "")
    if container is None:  # started after the head was asked
        container = _only({held.container for held in known.holders if held[:2] == (facts.namespace, facts.pod)})
    return Attribution(
        identity._replace(
            job_id=JobId(facts.job_id),
            job_name=facts.job_name,
            scheduler=KUBERNETES,
            attempt=_attempt(identity, facts.attempt),
        ),
        frozenset(overruled),
        PodPlace(
            known.cgroup.pod_uid,
            facts.namespace,
            facts.pod,
            container,
            job_known=True,
            kind=facts.kind if facts.replica else "",
            replica=facts.replica,
        ),
        facts.user_name or facts.namespace,
    )


def _in_unknown_pod(identity: RankIdentity, known: PodProof, facts: ProcessFacts) -> Attribution:
    """The workload is unknown: a claim of one stays only if the kubelet confirms its namespace, a claim of a Slurm job
    never. The head never answers for pods without the label, which their makers may leave out."""
    namespace = _only({held.namespace for held in known.holders})
    pod = _only({held[:2] for held in known.holders})
    container = _only(known.holders)
    place = PodPlace(
        known.cgroup.pod_uid,
        namespace,
        None if pod is None else pod[1],
        None if container is None else container.container,
    )
    claimed = identity.job_id
    identity = identity._replace(scheduler=KUBERNETES)
    lie = namespace is not None and _is_of_another(claimed, namespace)
    confirmed = namespace is not None and claimed.startswith(f"{namespace}/")
    if pod is not None and not confirmed:
        identity = identity._replace(job_id=JobId(job_id(*pod)))
    elif ("/" in claimed and not confirmed) or _SLURM_ID.fullmatch(claimed) is not None:
        identity = identity._replace(job_id=_own_id(identity, facts))
    return Attribution(
        identity, frozenset({"job_id"} if lie else ()), place, namespace if namespace is not None else str(facts.uid)
    )


def _outside_pods(identity: RankIdentity, facts: ProcessFacts, *, outside_slurm: bool) -> Attribution:
    """A process in no pod is of no workload; one outside Slurm, too, is under no name that a Slurm job can have."""
    overruled = set()
    if identity.scheduler == KUBERNETES or (outside_slurm and identity.scheduler == SLURM):
        overruled.add("scheduler")
        identity = identity._replace(scheduler="local")
    of_slurm = outside_slurm and _SLURM_ID.fullmatch(identity.job_id) is not None
    if of_slurm or namespace_of(identity.job_id) is not None:
        overruled.add("job_id")
        identity = identity._replace(job_id=_own_id(identity, facts))
    return Attribution(identity, frozenset(overruled))


def _attempt(identity: RankIdentity, restarts: int) -> int:
    """The attempt: restarts by the scheduler, and those within one start, which only a rank's launcher counts
    (``probe.identity``)."""
    each = max(1, identity.attempts_each)
    return min(restarts * each + identity.attempt % each, MAX_ATTEMPT)


def _own_id(identity: RankIdentity, facts: ProcessFacts) -> JobId:
    return made_up_job_id(identity.hostname, facts.process)


def _is_of_another(claimed: JobId, namespace: str) -> bool:
    return namespace_of(claimed) not in (None, namespace)


def _only(values: AbstractSet[T]) -> T | None:
    """The one that there is; ``None`` if there are several: a shared GPU."""
    return next(iter(values)) if len(values) == 1 else None


def _names(claimed: JobId, place: SlurmPlace) -> bool:
    """Whether ``claimed`` means this job: by its number, or as people write a task of an array (``123_4``)."""
    if claimed == place.job_id:
        return True
    name = array_name(place)
    return claimed == name if name is not None else "_" in claimed and _SLURM_ID.fullmatch(claimed) is not None


class SourceAnswer(NamedTuple):
    """The sources' current answers about one process."""

    slurm: SlurmPlace | NoPlace = NoPlace.WAITING
    """slurmd."""
    pod: PodFacts | NoPlace = NoPlace.WAITING
    """The head, which asks the API server."""
    holders: frozenset[HeldBy] = frozenset()
    """The kubelet."""


class AttributionSources:
    """Asks every source about a process. ``pods=None``: Kubernetes is disabled, and no process counts as in a pod."""

    def __init__(
        self,
        steps: StepSource,
        records: RecordSource,
        pods: PodBook | None = None,
        holders: HolderSource | None = None,
    ) -> None:
        self._steps = steps
        self._records = records
        self._pods = pods
        self._holders = holders or NoHolders()

    def ask(
        self, facts: ProcessFacts, before: SourceAnswer, gpus: Sequence[GpuReading], *, alive: bool
    ) -> SourceAnswer:
        """Ask the sources about a process again; ``before`` was their last answer, ``gpus`` what NVML says now.

        A process that ended before slurmd could be asked is outside: else one that ends at once could have
        named any job.
        """
        return SourceAnswer(self._slurm(facts, before.slurm, alive=alive), *self._kubernetes(facts, before, gpus))

    def evidence(self, answer: SourceAnswer, facts: ProcessFacts) -> IdentityProof | None:
        """The evidence in ``answer``; ``None`` while a source has yet to answer."""
        if answer.slurm is NoPlace.WAITING:
            return None
        if isinstance(answer.slurm, SlurmPlace):
            return self._of_job(answer.slurm, facts)
        if self._pods is not None and facts.pod is not None:
            if answer.pod is NoPlace.WAITING:
                return None
            known = answer.pod if isinstance(answer.pod, PodFacts) else None
            return IdentityProof(pod=PodProof(facts.pod, known, answer.holders))
        if facts.slurm is not None:
            return self._of_job(facts.slurm, facts)
        return IdentityProof(outside=answer.slurm is NoPlace.OUTSIDE)

    def _slurm(self, facts: ProcessFacts, before: SlurmPlace | NoPlace, *, alive: bool) -> SlurmPlace | NoPlace:
        if not alive and before is not NoPlace.WAITING:
            return before
        answer = self._steps.place_of(facts.process)
        return NoPlace.OUTSIDE if answer is NoPlace.WAITING and not alive else answer

    def _kubernetes(
        self, facts: ProcessFacts, before: SourceAnswer, gpus: Sequence[GpuReading]
    ) -> tuple[PodFacts | NoPlace, frozenset[HeldBy]]:
        """The GPUs are those that the driver lists the process on: by a card that it only claims to use, it would take
        another pod's name."""
        if self._pods is None or facts.pod is None:
            return NoPlace.NOT_ASKED, frozenset()
        pid = facts.process.pid
        uuids = [gpu.uuid for gpu in gpus if pid in (gpu.process_bytes or ())]
        holders = self._holders.holders_of(uuids) if uuids else frozenset()
        return self._pods.facts_of(facts.pod), holders or before.holders

    def _of_job(self, place: SlurmPlace, facts: ProcessFacts) -> IdentityProof:
        record = self._records.record_of(place.job_id)
        if record is None:
            return IdentityProof(place)
        if record.uid != facts.uid:
            return IdentityProof(place, of_another_user=True)
        place = place._replace(
            array_job_id=record.array_job_id,
            array_task_id=record.array_task_id,
            account=record.account,
            partition=record.partition,
        )
        return IdentityProof(place, restarts=record.restarts)
