"""Sources for attribution: slurmd, the prolog, the head, the kubelet, and the kernel by ``ProcessFacts``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidegauge.agent.attribution.rules import IdentityProof, PodProof
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
from tidegauge.core.jobs.kubernetes import PodFacts
from tidegauge.core.jobs.slurm import SlurmPlace


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
        place = place._replace(array_job_id=record.array_job_id, array_task_id=record.array_task_id)
        return IdentityProof(place, restarts=record.restarts)
