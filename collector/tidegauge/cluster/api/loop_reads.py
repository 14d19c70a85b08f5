"""The database as pages and scrapes use it: protocols that ``cluster.store`` implements, and tests imitate.

Every method raises ``AuditError``. ``user_name`` limits a result to the jobs of one owner, or of a scope.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from tidegauge.core.evidence import Evidence
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident, IncidentCause, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.acts import ActOutcome, PersonAct
from tidegauge.core.incidents.grades import GradeAnswer, GradedIncident
from tidegauge.core.incidents.loop_figures import OpenIncident
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.job_records.search import RecordFilter, RecordSought
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.http.access import Owned


class IncidentReads(Protocol):
    """The methods of ``store.IncidentStore`` that pages call."""

    def each(
        self, *, open_only: bool, since_s: float | None, limit: int | None, user_name: Owned | None = None
    ) -> Iterator[Incident]: ...

    def incident(self, number: int, /) -> Incident | None: ...

    def memory(self, number: int, /) -> Sequence[RankMemory]: ...

    def lines(self, number: int, /, *, most: int, most_figures: int) -> Iterator[IncidentChange]: ...

    def count_left_out(self, number: int, /, *, most: int, most_figures: int) -> int: ...

    def changes(
        self, *, since_s: float, limit: int, user_name: Owned | None = None, most_findings: int | None = None
    ) -> Sequence[IncidentChange]: ...

    def of_job(self, job: JobKey, /, *, limit: int) -> Sequence[Incident]: ...

    def has_owner(self, job: JobKey, user_name: Owned, /) -> bool: ...

    def namespaces(self) -> frozenset[str]: ...

    def marks(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Mapping[int, str]: ...

    def open_figures(self, jobs: Collection[JobKey]) -> Sequence[tuple[JobKey | None, OpenIncident]]: ...

    def totals(self) -> Mapping[IncidentCause, int]: ...


class AuditReads(Protocol):
    """The methods of ``store.SqlAudit`` that pages call."""

    def each(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Iterator[DecisionRecord]: ...

    def count(self, *, since_s: float, user_name: Owned | None = None) -> int: ...

    def records_of(self, number: int, /) -> Sequence[DecisionRecord]: ...

    def action_totals(self) -> Mapping[tuple[str, str], int]: ...

    def last_finished(self, jobs: Collection[JobKey], *, since_s: float) -> Mapping[tuple[JobKey, str, str], float]: ...


class EvidenceReads(Protocol):
    """The method of ``store.EvidenceStore`` that pages call."""

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[Evidence]: ...


class Grades(Protocol):
    """The methods of ``store.GradeStore``."""

    def add(self, number: int, answer: GradeAnswer, /) -> bool: ...

    def answers(self, number: int, /) -> Sequence[GradeAnswer]: ...

    def last_of(self, number: int, name: str, /) -> GradeAnswer | None: ...

    def notified(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Sequence[GradedIncident]: ...

    def count_notified(self, *, since_s: float, user_name: Owned | None = None) -> int: ...


class Acts(Protocol):
    """The methods of ``store.ActStore``."""

    def find(self, request_id: str, /) -> PersonAct | None: ...

    def begin(self, act: PersonAct, /) -> PersonAct | None: ...

    def finish(self, request_id: str, outcome: ActOutcome, detail: str | None, /) -> PersonAct: ...

    def of_incident(self, number: int, /) -> Sequence[PersonAct]: ...

    def latest(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Sequence[PersonAct]: ...


class ProfileReads(Protocol):
    """The methods of ``store.ProfileStore`` that pages call."""

    def of_job(self, job: JobKey, /, *, limit: int) -> Sequence[RankProfile]: ...

    def ranks_of(self, job: JobKey, /, *, limit: int) -> Sequence[int]: ...

    def of_rank(self, job: JobKey, rank: int, /) -> RankProfile | None: ...

    def newest(self, *, limit: int) -> Sequence[tuple[JobKey, float]]: ...


class JobReads(Protocol):
    """The methods of ``store.JobRecordStore`` that pages call."""

    def latest(self, jobs: Collection[JobKey], /) -> Mapping[JobKey, JobRecord]: ...

    def ended(self, which: RecordFilter, /, *, limit: int) -> Sequence[JobRecord]: ...

    def count_ended(self, which: RecordFilter, /) -> int: ...

    def starts(self, sought: RecordSought, /, *, limit: int) -> Sequence[JobRecord]: ...

    def memory(self, record: JobRecord, /) -> JobMemory | None: ...

    def namespaces(self) -> frozenset[str]: ...


class UsageReads(Protocol):
    """The methods of ``store.UsageStore``."""

    def usage(
        self,
        by: UsageBy,
        /,
        *,
        since_s: float,
        limit: int,
        user_name: str | None = None,
        within: Owned | None = None,
        job_name: str | None = None,
    ) -> Sequence[GpuUsage]: ...

    def gpu_sizes(self, *, since_s: float) -> Sequence[int]: ...


class LoopStore(Protocol):
    """The tables of ``store.Store``."""

    @property
    def incidents(self) -> IncidentReads: ...

    @property
    def audit(self) -> AuditReads: ...

    @property
    def evidence(self) -> EvidenceReads: ...

    @property
    def grades(self) -> Grades: ...

    @property
    def acts(self) -> Acts: ...

    @property
    def jobs(self) -> JobReads: ...

    @property
    def profiles(self) -> ProfileReads: ...

    @property
    def usage(self) -> UsageReads: ...
