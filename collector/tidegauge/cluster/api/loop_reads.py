"""What the service's pages and scrapes read of incidents and decisions: the database as they see it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from tidegauge.cluster.api.evidence_api import EvidenceReads
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident, IncidentCause, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.grades import GradeAnswer, GradedIncident
from tidegauge.core.incidents.loop_figures import OpenIncident


class IncidentReads(Protocol):
    """What is read of incidents. Every method raises ``AuditError``."""

    def each(
        self, *, open_only: bool, since_s: float | None, limit: int | None, user_name: str | None = None
    ) -> Iterator[Incident]:
        """Newest first, one at a time: those that are open, and unless ``open_only`` those that were closed since
        ``since_s``; here as everywhere of one owner's jobs alone, if ``user_name`` says whose."""

    def incident(self, number: int, /) -> Incident | None: ...

    def lines(self, number: int, /, *, most: int, most_figures: int) -> Iterator[IncidentChange]:
        """Of one incident's history, oldest first, one at a time: the newest ``most`` of those that tell more than new
        figures, and the newest ``most_figures`` of those that do not."""

    def count_left_out(self, number: int, /, *, most: int, most_figures: int) -> int:
        """How many lines of it ``lines`` leaves out."""

    def changes(
        self, *, since_s: float, limit: int, user_name: str | None = None, most_findings: int | None = None
    ) -> Sequence[IncidentChange]:
        """Of all incidents, the newest ``limit``, oldest first; with the figures of ``most_findings`` ranks in all,
        shared out evenly, one of each change at least."""

    def marks(self, *, since_s: float, limit: int, user_name: str | None = None) -> Mapping[int, str]:
        """By number, open ones first, then the newest: a word that changes whenever the incident or a decision about it
        does. Of those that are open, or were closed since ``since_s``."""

    def open_figures(self, jobs: Collection[JobKey]) -> Sequence[tuple[JobKey | None, OpenIncident]]:
        """Those that are open, with the one of ``jobs`` that each is about, if it is one of them."""

    def totals(self) -> Mapping[IncidentCause, int]:
        """Incidents ever opened."""


class AuditReads(Protocol):
    """What is read of decisions. Every method raises ``AuditError``."""

    def each(self, *, since_s: float, limit: int, user_name: str | None = None) -> Iterator[DecisionRecord]:
        """The newest ``limit``, oldest first, one at a time."""

    def count(self, *, since_s: float, user_name: str | None = None) -> int:
        """How many there are."""

    def records_of(self, number: int, /) -> Sequence[DecisionRecord]:
        """Of one incident, oldest first."""

    def action_totals(self) -> Mapping[tuple[str, str], int]:
        """Decisions ever made that are over, by action and outcome, ``would`` and ``withheld`` included."""

    def last_finished(self, jobs: Collection[JobKey], *, since_s: float) -> Mapping[tuple[JobKey, str, str], float]:
        """When the latest decision on each of ``jobs`` was over, by action and outcome; of those that were to be
        carried out and were made at or after ``since_s``."""


class GradeReads(Protocol):
    """What is read of people's answers. Every method raises ``AuditError``."""

    def answers(self, number: int, /) -> Sequence[GradeAnswer]:
        """To one incident, oldest first."""

    def last_of(self, number: int, name: str, /) -> GradeAnswer | None:
        """The latest of one person; ``None``: they gave none."""

    def notified(self, *, since_s: float, limit: int, user_name: str | None = None) -> Sequence[GradedIncident]:
        """The newest ``limit`` incidents of growth opened since ``since_s`` whose owner was told something, or would
        have been but for the policy's mode; newest first."""

    def count_notified(self, *, since_s: float, user_name: str | None = None) -> int:
        """How many there are."""


class LoopStore(Protocol):
    """The database as far as it is read here."""

    @property
    def incidents(self) -> IncidentReads: ...

    @property
    def audit(self) -> AuditReads: ...

    @property
    def evidence(self) -> EvidenceReads: ...

    @property
    def grades(self) -> GradeReads: ...
