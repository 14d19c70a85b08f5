"""Protocols of what the actions need: a scheduler, the processes of a job, settings, messages, the audit.

The adapter of a scheduler implements ``SchedulerPort``; ``tests/scheduler_hooks/port_contract.py`` holds every adapter
to the contract here. Methods may block for tens of seconds; they run in worker threads, several at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import (
    ActionKind,
    Decision,
    DecisionRecord,
    JobTarget,
    Outcome,
    RankTarget,
    SchedulerFacts,
)
from tidegauge.core.incidents.actions import AuditError as AuditError  # part of ``Audit``; the store raises it
from tidegauge.core.jobs.settings import JobSettings
from tidegauge.core.orders import Reply as Reply  # part of ``ProcessCommands``; the coordinator makes them
from tidegauge.core.views import JobView

THROUGH_RANKS = frozenset({ActionKind.CAP, ActionKind.CHECKPOINT})
"""Actions that reach ranks by their own command sockets and need no scheduler."""


class SchedulerError(Exception):
    """The scheduler did not do what it was asked. The message is for people: what happened, to which job."""


class TemporaryError(SchedulerError):
    """A retry after ``retry_after_s`` may work: no answer in time, busy, not reachable. It may have been done."""

    def __init__(self, message: str, *, retry_after_s: float = 10.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PermanentError(SchedulerError):
    """A retry will not help: not allowed, not supported, no such job."""


class ChangedError(SchedulerError):
    """The job is not the run that the decision was about (another incarnation, or gone): nothing was done."""


class Presence(str, Enum):
    """The observed state of a run."""

    RUNNING = "running"
    """This very incarnation runs."""
    STOPPING = "stopping"
    """This very incarnation is being ended."""
    REPLACED = "replaced"
    """The job lives in another incarnation, or waits to be started again."""
    HELD = "held"
    """It waits, and will not start by itself."""
    GONE = "gone"
    """It has ended."""
    UNKNOWN = "unknown"


class CheckpointStage(str, Enum):
    """The stage of a checkpoint request."""

    ASKED = "asked"
    """The ranks know; no proof yet. Look again."""
    PROVEN = "proven"
    REFUSED = "refused"
    """The job cannot be asked (no callback, no handler for the signal, no declared path), or its callback failed."""


@dataclass(frozen=True)
class CheckpointProgress:
    """Progress of a checkpoint request. ``detail`` is for people: "2 of 2 ranks saved at step 412"."""

    stage: CheckpointStage
    detail: str


@dataclass(frozen=True)
class RequeueChanges:
    """Changes for the next attempt."""

    alloc_conf: Mapping[str, str] = field(default_factory=dict)
    """Allocator settings to merge into those of the job (``{"expandable_segments": "True"}``)."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Other variables, such as ``TIDEGAUGE_MEMORY_FRACTION``."""


class SchedulerPort(Protocol):
    """One scheduler. Every acting method

    - takes the ``decision_id`` and may be called again with it after a crash: what was done is not done twice;
    - acts only on ``target.incarnation`` and raises ``ChangedError`` for any other;
    - raises ``TemporaryError``, ``PermanentError``; returns when the scheduler has accepted it. Whether it happened is
      then seen by ``presence``.
    """

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        """The facts of these jobs, in one query; jobs that the scheduler does not know are left out.

        Raises ``TemporaryError``."""

    def presence(self, target: JobTarget) -> Presence:
        """The state of the run now. Raises ``TemporaryError``."""

    def notify(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Notify the owner in the job's terminal or log."""

    def annotate(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Leave a remark on the job."""

    def cap(self, target: JobTarget, fraction: float, *, decision_id: str) -> str:
        """Set the memory fraction of every rank, now and for later attempts; returns what was set, for people."""

    def checkpoint(self, target: JobTarget, *, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        """Ask the job to save its state, or look how far it is: the first call asks, every further one looks."""

    def requeue(self, target: JobTarget, changes: RequeueChanges, reason: str, *, decision_id: str) -> None:
        """End this run and have the job start again with ``changes``."""

    def hold(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """End this run; the job waits for a person."""

    def cancel(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """End the job for good."""


class ProcessCommands(Protocol):
    """Command sockets on the nodes: of ranks' probes and of ``tidegauge run``. Blocks, never raises."""

    def ask_ranks(
        self, job: JobKey, ranks: Collection[RankTarget], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[int, Reply]:
        """Send the same request to several ranks at once; replies by global rank, one for each."""

    def ask_launch(
        self, job: JobKey, node_id: str, handle: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float
    ) -> Reply:
        """Send a request to the keeper that ``handle`` (``pid``, ``start_ticks``) names."""


class SettingsStore(Protocol):
    """Settings for the next attempts of jobs, stored on every node (``core.jobs.settings``). Thread-safe."""

    def get(self, job_id: str, uid: int) -> JobSettings | None:
        """The stored settings of a job."""

    def put(self, settings: JobSettings) -> None:
        """Replace the stored settings of the job. They survive a crash once this returns; the nodes get them with the
        replies to their next reports. Raises ``AuditError``."""

    def missing_on(self, *, timeout_s: float) -> Sequence[str]:
        """Wait until every node that reports has all settings; returns the hosts that do not have them by then."""


class Messenger(Protocol):
    """A way to owners beside their jobs' terminals: Slack, mail."""

    def tell(self, decision: Decision) -> str:
        """Send the owner the message of this decision (``parameters["text"]``); returns where, for people: "on Slack",
        "by mail". The same decision is sent once.

        Blocks for seconds at most. Raises ``TemporaryError``, ``PermanentError`` (the owner is unknown there)."""


class Audit(Protocol):
    """The durable record. Every method returns after its transaction is on disk, or raises ``AuditError``."""

    def write_ahead(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Write decisions down, all or none; returns those that were not there yet (by ``decision_id``)."""

    def begin(self, decision_id: str, *, at_s: float) -> None:
        """Record that the decision is about to be carried out, once more."""

    def finish(self, decision_id: str, outcome: Outcome, detail: str, *, at_s: float) -> None:
        """Record that the decision is over. A repetition changes nothing: the first outcome stays."""

    def unfinished(self) -> Sequence[DecisionRecord]:
        """Decisions to carry out (``do``) that have no outcome yet, oldest first."""

    def each(self, *, since_s: float) -> Iterator[DecisionRecord]:
        """All decisions made at or after ``since_s``, oldest first, one at a time: there may be months of them."""

    def memory(self, *, since_s: float) -> Iterator[DecisionRecord]:
        """The decisions that a policy starts with: those made at or after ``since_s``, and older ones that still count:
        on open incidents, unfinished ones, and those that a circuit breaker withheld. In any order, one at a time."""
