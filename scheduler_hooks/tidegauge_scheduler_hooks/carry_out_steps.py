"""One decision, step by step: look, write down that it begins, act, look whether it happened. See docs/actions.md.

``advance`` takes what the audit and this process know of a decision, and returns what this process is to remember. That
memory may be lost at any moment: the next step then looks first and asks the scheduler again, which the port's contract
makes harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, DecisionStatus, JobTarget, Outcome
from tidegauge.core.jobs.kubernetes import SCHEDULER as KUBERNETES
from tidegauge_scheduler_hooks.ports import (
    Audit,
    AuditError,
    ChangedError,
    CheckpointStage,
    Messenger,
    PermanentError,
    Presence,
    ProcessCommands,
    RequeueChanges,
    SchedulerError,
    SchedulerPort,
    TemporaryError,
)
from tidegauge_scheduler_hooks.rank_commands import ask_for_evidence

log = logging.getLogger(__name__)

_WHERE: Mapping[str, str] = {KUBERNETES: "Kubernetes Event"}
"""The place where an owner reads it, by adapter. With the Event goes a line on a rank's standard error, if possible."""


def tell_owner(decision: Decision, port: SchedulerPort | None, messenger: Messenger | None) -> str:
    """Notify the owner by all ways there are. One that works is enough: a messenger that is down must not undo what the
    terminal has shown. Returns what was done, for people.

    Raises ``TemporaryError`` if no way works now, ``PermanentError`` if none ever will, and ``ChangedError``."""
    ways: list[Callable[[], str]] = []
    if port is not None and decision.facts.scheduler_facts is not None:  # else it does not know the job
        ways.append(lambda: _through_the_scheduler(decision, port))
    if messenger is not None:
        ways.append(lambda: messenger.tell(decision))
    results = [_tried(way) for way in ways]
    told = [result for result in results if isinstance(result, str)]
    failed = [result for result in results if not isinstance(result, str)]
    if told:
        return "; ".join([f"owner notified: {', '.join(told)}", *(f"not delivered: {error}" for error in failed)])
    for error in failed:
        if isinstance(error, TemporaryError):
            raise error
    raise PermanentError("; ".join(map(str, failed)) or "no way to notify the owner")


def _tried(way: Callable[[], str]) -> str | SchedulerError:
    try:
        return way()
    except (TemporaryError, PermanentError) as error:
        return error


def _through_the_scheduler(decision: Decision, port: SchedulerPort) -> str:
    text = decision.parameters.get("text", decision.reason)
    port.notify(decision.target, text, decision_id=decision.decision_id)
    return _WHERE.get(decision.target.scheduler, "job output")


LEADS_TO: Mapping[ActionKind, frozenset[Presence]] = {
    ActionKind.REQUEUE: frozenset({Presence.REPLACED}),
    # Not every scheduler can keep a job that it has ended; there, holding is ending.
    ActionKind.HOLD: frozenset({Presence.HELD, Presence.GONE}),
    ActionKind.CANCEL: frozenset({Presence.GONE}),
}
"""The states of a run that show that it was ended in this way."""

SEEN_AS = {
    Presence.RUNNING: "is still running",
    Presence.STOPPING: "is ending",
    Presence.REPLACED: "was restarted, or is waiting to restart",
    Presence.HELD: "is held",
    Presence.GONE: "has ended",
}


@dataclass(frozen=True)
class CarryOutTimes:
    """Time limits on the policy clock."""

    expires_after_s: float = 900.0
    """A decision whose turn comes later is not started: its inputs are outdated."""
    verify_within_s: float = 180.0
    """The time in which an accepted action must become visible. Ending a run takes 30 s in Slurm (``KillWait``) and as
    long in Kubernetes before either kills, and a busy controller needs its time."""
    look_every_s: float = 2.0
    most_starts: int = 5
    """Starts of one decision, over crashes and temporary failures."""
    longest_retry_s: float = 120.0
    """Longer waits that an adapter asks for are cut to this."""
    slow_call_s: float = 60.0
    """A call that takes longer is logged."""
    calls_per_scheduler: int = 3
    """Calls to one adapter at once: one that hangs takes no more workers than these. One user has all but one of these
    and of ``messages_at_once`` at most."""
    messages_at_once: int = 3
    """Owners who are being notified at once, on all schedulers. Slack takes one at a time anyway; but a keeper that
    does not answer holds its call for seconds, and only with several can one be left to other users."""


class Stage(Enum):
    """The stage of a decision, as far as this process remembers."""

    READY = "ready"
    """To be started, or started again."""
    ACCEPTED = "accepted"
    """The scheduler accepted it; the effect is to be seen."""
    ASKED = "asked"
    """The job was asked to save its state; the proof is to come."""


@dataclass(frozen=True)
class StepProgress:
    """The memory of this process about a decision, beyond the audit."""

    stage: Stage = Stage.READY
    due_s: float = float("-inf")
    """The earliest time of the next step."""
    deadline_s: float | None = None
    """The end of the time in which it can be seen or proven."""
    seen: str = ""
    """The last observation or answer, for people; with an outcome: its detail."""
    unseen_since_s: float | None = None
    """The time since which the scheduler cannot say where the job is."""
    outcome: Outcome | None = None
    """It is over, and the outcome remains to be written."""


class Steps:
    """Takes the steps. ``now_s`` is the policy clock, ``wall_s`` the host's clock, which the deadlines of jobs use.

    ``held_back`` returns why a decision must not be carried out now, or ``None``; it is asked right before any action.
    ``messenger`` notifies owners beside the scheduler, ``commands`` reach ranks for evidence."""

    def __init__(
        self,
        audit: Audit,
        schedulers: Mapping[str, SchedulerPort],
        *,
        now_s: Callable[[], float],
        wall_s: Callable[[], float],
        held_back: Callable[[DecisionRecord], str | None],
        times: CarryOutTimes | None = None,
        messenger: Messenger | None = None,
        commands: ProcessCommands | None = None,
    ) -> None:
        self.audit = audit
        self.now_s = now_s
        self.times = times or CarryOutTimes()
        self._messenger = messenger
        self._commands = commands
        self._schedulers = schedulers
        self._wall_s = wall_s
        self._held_back = held_back

    def advance(self, record: DecisionRecord, progress: StepProgress) -> StepProgress:
        """Take the next step. Blocks for as long as the adapter does.

        Raises ``AuditError``; the scheduler has then not been asked to do anything."""
        decision = record.decision
        try:
            port = self._schedulers.get(decision.target.scheduler)
            is_told = decision.action is ActionKind.NOTIFY and self._messenger is not None
            if is_told or decision.action is ActionKind.SNAPSHOT:
                return self._start(port, record, progress)
            if port is None:
                return _over(
                    Outcome.FAILED, f"no adapter for the scheduler {decision.target.scheduler!r} is running here"
                )
            if progress.stage is Stage.ACCEPTED:
                return self._verify(port, decision, progress)
            if progress.stage is Stage.ASKED:
                return self._prove(port, decision, progress)
            return self._start(port, record, progress)
        except AuditError:
            raise
        except PermanentError as error:
            return _over(Outcome.FAILED, str(error))
        except ChangedError as error:
            begun = record.status is DecisionStatus.STARTED or progress.stage is not Stage.READY
            return _left(decision, str(error), begun=begun)
        except Exception as error:
            log.exception("decision %s failed: internal error", decision.decision_id)
            return _over(Outcome.FAILED, f"internal error, see the coordinator's log: {type(error).__name__}: {error}")

    def _start(self, port: SchedulerPort | None, record: DecisionRecord, progress: StepProgress) -> StepProgress:
        """Take a decision that waits, or was left started, to the scheduler's answer."""
        decision = record.decision
        begun = record.status is DecisionStatus.STARTED
        if not begun:
            over = self._too_late(decision, progress) or self._stopped(record)
            if over is not None:
                return over
        if decision.action.is_acting:
            assert port is not None, "only words find their reader without a scheduler"
            try:
                seen = _look(port, decision.target)
            except TemporaryError as error:
                return self._unseen(begun, progress, error)
            over = self._already(decision, seen, begun=begun)
            if over is not None:
                return over
        # Looking may have taken a while, and a pause must hold from the moment that it is given.
        over = self._stopped(record)
        if over is not None:
            return over
        if record.starts >= self.times.most_starts:
            if not progress.seen:
                # Its answer was lost, or the process that got it: an action that leaves no trace may have happened.
                interrupted = f"started {record.starts} times and interrupted each time: unknown whether it took effect"
                return _over(Outcome.FAILED, interrupted)
            return _over(Outcome.FAILED, f"started {record.starts} times without success; last error: {progress.seen}")
        self.audit.begin(decision.decision_id, at_s=self.now_s())
        if decision.action is ActionKind.CHECKPOINT:
            assert port is not None
            return self._prove(port, decision, progress)
        try:
            said = self._act(port, decision)
        except TemporaryError as error:
            return StepProgress(due_s=self.now_s() + self._wait_s(error), seen=str(error))
        except ChangedError as error:
            if not (begun and decision.action.is_stop):
                raise
            # Not that run any more: that may be our own doing, from the time before, and a look will tell.
            return StepProgress(due_s=self.now_s() + self.times.look_every_s, seen=str(error))
        if not decision.action.is_stop:
            return _over(Outcome.DONE, said)
        return StepProgress(Stage.ACCEPTED, deadline_s=self.now_s() + self.times.verify_within_s, seen=said)

    def _too_late(self, decision: Decision, progress: StepProgress) -> StepProgress | None:
        patience_s = self.times.expires_after_s
        if decision.action is ActionKind.CHECKPOINT:
            patience_s = min(patience_s, _grace_s(decision))
        age_s = self.now_s() - decision.decided_s
        if age_s <= patience_s:
            return None
        if progress.seen:
            return _over(Outcome.FAILED, f"gave up after {age_s:.0f} s, nothing was done: {progress.seen}")
        return _over(Outcome.SUPERSEDED, f"its turn came {age_s:.0f} s after the decision: too old to act on")

    def _stopped(self, record: DecisionRecord) -> StepProgress | None:
        why = self._held_back(record)
        if why is None:
            return None
        if record.status is DecisionStatus.STARTED:
            return _over(Outcome.UNVERIFIED, f"already started and may still take effect, not retried: {why}")
        return _over(Outcome.STOPPED, why)

    def _unseen(self, begun: bool, progress: StepProgress, error: TemporaryError) -> StepProgress:
        """The scheduler cannot say where the job is. An unstarted decision waits until it is too late for it."""
        now_s = self.now_s()
        since_s = now_s if progress.unseen_since_s is None else progress.unseen_since_s
        if begun and now_s - since_s >= self.times.verify_within_s:
            return _over(Outcome.UNVERIFIED, f"already started, but its effect cannot be seen: {error}")
        return replace(progress, due_s=now_s + self._wait_s(error), seen=str(error), unseen_since_s=since_s)

    def _already(self, decision: Decision, seen: Presence, *, begun: bool) -> StepProgress | None:
        """``None`` for a run that can be acted on. ``begun``: its state may be the effect of this very decision."""
        if seen is Presence.RUNNING:
            return None
        what = f"{_name(decision.target)} {SEEN_AS[seen]}"
        if not begun or not decision.action.is_stop:
            return _left(decision, what, begun=begun)
        if seen in LEADS_TO[decision.action]:
            return _over(Outcome.DONE, what)
        if seen is Presence.STOPPING:
            return StepProgress(Stage.ACCEPTED, deadline_s=self.now_s() + self.times.verify_within_s, seen=what)
        return _over(Outcome.UNVERIFIED, f"already started, but {what}")

    def _verify(self, port: SchedulerPort, decision: Decision, progress: StepProgress) -> StepProgress:
        assert progress.deadline_s is not None
        try:
            seen = _look(port, decision.target)
        except SchedulerError as error:
            what = str(error)
        else:
            what = f"{_name(decision.target)} {SEEN_AS[seen]}"
            if seen in LEADS_TO[decision.action]:
                return _over(Outcome.DONE, what)
        now_s = self.now_s()
        if now_s >= progress.deadline_s:
            return _over(Outcome.UNVERIFIED, f"accepted {self.times.verify_within_s:.0f} s ago, but {what}")
        return replace(progress, due_s=min(now_s + self.times.look_every_s, progress.deadline_s), seen=what)

    def _prove(self, port: SchedulerPort, decision: Decision, progress: StepProgress) -> StepProgress:
        """Ask for a checkpoint, or look how far it is: the first call asks, whichever process makes it."""
        grace_s = _grace_s(decision)
        deadline_s = decision.decided_s + grace_s
        try:
            found = port.checkpoint(
                decision.target,
                decision_id=decision.decision_id,
                deadline_unix_s=self._wall_s() + deadline_s - self.now_s(),
            )
        except TemporaryError as error:
            stage, what, wait_s = progress.stage, str(error), self._wait_s(error)
        else:
            if found.stage is CheckpointStage.PROVEN:
                return _over(Outcome.DONE, found.detail)
            if found.stage is CheckpointStage.REFUSED:
                return _over(Outcome.FAILED, found.detail)
            stage, what, wait_s = Stage.ASKED, found.detail, self.times.look_every_s
        now_s = self.now_s()
        if now_s >= deadline_s:
            return _over(Outcome.NO_PROOF, f"no proof of a checkpoint within {grace_s:.0f} s: {what}")
        return StepProgress(stage, due_s=min(now_s + wait_s, deadline_s), deadline_s=deadline_s, seen=what)

    def _act(self, port: SchedulerPort | None, decision: Decision) -> str:
        if decision.action is ActionKind.NOTIFY:
            return tell_owner(decision, port, self._messenger)
        if decision.action is ActionKind.SNAPSHOT:
            return ask_for_evidence(self._commands, decision)
        assert port is not None
        return _ask(port, decision)

    def _wait_s(self, error: TemporaryError) -> float:
        return max(0.0, min(error.retry_after_s, self.times.longest_retry_s))


def _over(outcome: Outcome, detail: str) -> StepProgress:
    return StepProgress(outcome=outcome, seen=detail)


def _left(decision: Decision, what: str, *, begun: bool) -> StepProgress:
    """The run is over, and not by this decision. ``superseded`` says that nothing was done."""
    if not begun:
        return _over(Outcome.SUPERSEDED, what)
    outcome = Outcome.NO_PROOF if decision.action is ActionKind.CHECKPOINT else Outcome.UNVERIFIED
    return _over(outcome, f"already started, but {what}")


def _name(target: JobTarget) -> str:
    return f"job {target.job.job_id} attempt {target.job.attempt}"


def _look(port: SchedulerPort, target: JobTarget) -> Presence:
    """The state of the run. Raises ``TemporaryError`` also if the scheduler does not know it."""
    seen = port.presence(target)
    if seen is Presence.UNKNOWN:
        raise TemporaryError(f"the scheduler does not report the state of {_name(target)}")
    return seen


def _grace_s(decision: Decision) -> float:
    return float(decision.parameters["grace_s"])


def _ask(port: SchedulerPort, decision: Decision) -> str:
    """Have the scheduler act (messages and checkpoints have their own ways); returns a sentence for people."""
    target, action, decision_id = decision.target, decision.action, decision.decision_id
    parameters, reason = decision.parameters, decision.reason
    if action is ActionKind.ANNOTATE:
        port.annotate(target, parameters.get("text", reason), decision_id=decision_id)
        return "job annotated"
    if action is ActionKind.CAP:
        return port.cap(target, float(parameters["fraction"]), decision_id=decision_id)
    if action is ActionKind.REQUEUE:
        changes = RequeueChanges(parameters.get("alloc_conf", {}), parameters.get("environ", {}))
        port.requeue(target, changes, reason, decision_id=decision_id)
    elif action is ActionKind.HOLD:
        port.hold(target, reason, decision_id=decision_id)
    else:
        assert action is ActionKind.CANCEL, action
        port.cancel(target, reason, decision_id=decision_id)
    return f"{action.value} of {_name(target)} accepted by the scheduler"
