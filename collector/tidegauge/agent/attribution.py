"""Whose word counts on which job a rank belongs to, and who that rank is then: a pure function of claim and evidence.

slurmd decides where it answers, and the cgroup that slurmstepd made is a second witness. A process that neither knows
may call itself what it likes, but not a Slurm job: nobody puts ranks into another's job.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegauge.agent.ports import NoPlace, ProcessFacts, RecordSource, StepSource
from tidegauge.core.ids import JobId, RankIdentity
from tidegauge.core.slurm import SCHEDULER, SlurmPlace, array_name

MAX_ATTEMPT = 1 << 31
"""As in a ring."""
_SLURM_ID = re.compile(r"[0-9]+(_[0-9]+)?")


class Evidence(NamedTuple):
    """What is known of a process's job apart from its own claim."""

    place: SlurmPlace | None = None
    """By slurmd's word, else by the kernel's."""
    restarts: int | None = None
    """Of the job, as the prolog says."""
    outside: bool = False
    """slurmd answers and knows no such process, nor does the kernel place it in a job."""
    of_another_user: bool = False
    """The prolog says that the job belongs to another user than the process."""


class Attribution(NamedTuple):
    """A rank's identity as it is shown, and the claims that it does not follow."""

    identity: RankIdentity
    overruled: frozenset[str] = frozenset()
    """``job_id``, ``attempt``, ``scheduler``, ``job_user``."""


class Witnesses:
    """Who is heard on a process's job: slurmd, the prolog, and the kernel by ``ProcessFacts``."""

    def __init__(self, steps: StepSource, records: RecordSource) -> None:
        self._steps = steps
        self._records = records

    def word_on(self, facts: ProcessFacts, before: SlurmPlace | NoPlace, *, alive: bool) -> SlurmPlace | NoPlace:
        """What slurmd says of a process now, of which it said ``before``.

        One that ended before slurmd could be asked is outside: else a process that is gone at once could still have
        named any job.
        """
        if not alive and before is not NoPlace.WAITING:
            return before
        word = self._steps.place_of(facts.process)
        return NoPlace.OUTSIDE if word is NoPlace.WAITING and not alive else word

    def evidence(self, word: SlurmPlace | NoPlace, facts: ProcessFacts) -> Evidence | None:
        """What there is to know once slurmd said ``word``; ``None`` while that is to be waited for."""
        if word is NoPlace.WAITING:
            return None
        place = word if isinstance(word, SlurmPlace) else facts.slurm
        if place is None:
            return Evidence(outside=word is NoPlace.OUTSIDE)
        record = self._records.record_of(place.job_id)
        if record is None:
            return Evidence(place)
        if record.uid != facts.uid:
            return Evidence(place, of_another_user=True)
        place = place._replace(array_job_id=record.array_job_id, array_task_id=record.array_task_id)
        return Evidence(place, restarts=record.restarts)


def attribute(claimed: RankIdentity, known: Evidence, facts: ProcessFacts, *, hostname: str) -> Attribution:
    """``claimed``, corrected. The host is always our own; what nobody else can know stays the rank's word."""
    identity = claimed._replace(hostname=hostname)
    if known.place is None:
        return _refuse_slurm(identity, facts) if known.outside else Attribution(identity)
    overruled = {"job_user"} if known.of_another_user else set()
    if not _names(claimed.job_id, known.place):
        overruled.add("job_id")
    identity = identity._replace(job_id=known.place.job_id, scheduler=SCHEDULER)
    if known.restarts is not None:
        # Restarts inside one start of the job are known to its launcher only (probe.identity).
        each = max(1, claimed.attempts_each)
        attempt = min(known.restarts * each + claimed.attempt % each, MAX_ATTEMPT)
        if attempt != claimed.attempt:
            overruled.add("attempt")
        identity = identity._replace(attempt=attempt)
    return Attribution(identity, frozenset(overruled))


def _refuse_slurm(identity: RankIdentity, facts: ProcessFacts) -> Attribution:
    """A process outside Slurm: not of Slurm's, and under no name that a Slurm job can have."""
    overruled = set()
    if identity.scheduler == SCHEDULER:
        overruled.add("scheduler")
        identity = identity._replace(scheduler="local")
    if _SLURM_ID.fullmatch(identity.job_id) is not None:
        overruled.add("job_id")
        process = facts.process
        own = JobId(f"local-{identity.hostname}-{process.pid}-{process.start_ticks}")  # as probe.identity names one
        identity = identity._replace(job_id=own)
    return Attribution(identity, frozenset(overruled))


def _names(claimed: JobId, place: SlurmPlace) -> bool:
    """Whether ``claimed`` means this job: by its number, or as people write a task of an array (``123_4``)."""
    if claimed == place.job_id:
        return True
    name = array_name(place)
    return claimed == name if name is not None else "_" in claimed and _SLURM_ID.fullmatch(claimed) is not None
