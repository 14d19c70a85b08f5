"""``SchedulerPort`` for one workstation: the keeper of a ``tidegauge run`` ends its command and starts it again.

A job without a keeper (a plain ``torchrun``) can still be capped and asked for a checkpoint, through its own ranks; it
can be neither ended nor notified, and Tidegauge never ends a process that it did not start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import ActionKind, JobTarget, SchedulerFacts
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.orders import GONE
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RANK_TIMEOUT_S, RankCheckpoint
from tidegauge_scheduler_hooks.facts import common
from tidegauge_scheduler_hooks.ports import (
    THROUGH_RANKS,
    ChangedError,
    CheckpointProgress,
    PermanentError,
    Presence,
    ProcessCommands,
    Reply,
    RequeueChanges,
    TemporaryError,
)
from tidegauge_scheduler_hooks.rank_commands import cap_ranks
from tidegauge_scheduler_hooks.scheduler_watch import LOCAL

log = logging.getLogger(__name__)

LAUNCH_TIMEOUT_S = 10.0
STOP_GRACE_S = 30.0
"""Between SIGTERM and SIGKILL, as long as torchrun gives its ranks."""
BUSY_RETRY_S = 20.0
"""For a keeper that is busy: its owner asked the job to end a moment ago."""

_PRESENCE = {
    LaunchState.RUNNING: Presence.RUNNING,
    LaunchState.STOPPING: Presence.STOPPING,
    LaunchState.HELD: Presence.HELD,
    LaunchState.ENDED: Presence.GONE,
}


class LocalScheduler:
    """The local adapter. ``commands`` reach keepers and ranks. A held job has ended: its owner starts it again."""

    def __init__(self, commands: ProcessCommands) -> None:
        self._commands = commands
        self._checkpoints = RankCheckpoint(commands)

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        """Facts from the agents' reports; jobs of other schedulers are left out. Asks nobody."""
        found: dict[JobKey, SchedulerFacts] = {}
        for job in jobs:
            if job.launch is not None and job.launch_node is not None:
                found[job.key] = _kept(job, job.launch, job.launch_node)
            elif job.scheduler in (None, LOCAL):
                found[job.key] = _alone(job)
        return found

    def presence(self, target: JobTarget) -> Presence:
        """The keeper's answer; of a job without a keeper, its ranks' answers. Raises ``TemporaryError``."""
        if not target.handle:
            return self._presence_of_ranks(target)
        reply = self._ask(target, {"command": "describe"})
        if reply.kind == GONE:
            return Presence.GONE
        try:
            said = _value(target, reply)
            restarts, state = int(said["restarts"]), LaunchState(said["state"])
        except (KeyError, TypeError, ValueError, PermanentError) as error:
            raise TemporaryError(f"job {target.job.job_id}: invalid answer from its tidegauge run ({error})") from error
        if restarts != target.handle.get("restarts"):
            return Presence.REPLACED
        return _PRESENCE[state]

    def notify(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Print lines on the job's stderr."""
        self._order(target, "notify", decision_id, text=text)

    def annotate(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        """Leave a remark in the launch's record, which ``tidegauge jobs --json`` shows."""
        self._order(target, "annotate", decision_id, text=text)

    def cap(self, target: JobTarget, fraction: float, *, decision_id: str) -> str:
        """Cap by the ranks' own command sockets now, by the keeper for later attempts."""
        if target.handle:
            self._order(target, "cap", decision_id, fraction=fraction)
        self._check_running(target)
        done = cap_ranks(self._commands, target, fraction)
        return f"{done}, and on later attempts" if target.handle else done

    def checkpoint(self, target: JobTarget, *, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        self._check_running(target)
        return self._checkpoints.advance(target, decision_id=decision_id, deadline_unix_s=deadline_unix_s)

    def requeue(self, target: JobTarget, changes: RequeueChanges, reason: str, *, decision_id: str) -> None:
        self._order(
            target, "requeue", decision_id, reason=reason, grace_s=STOP_GRACE_S,
            alloc_conf=dict(changes.alloc_conf), environ=dict(changes.environ),
            torch_version=target.handle.get("torch_version"),
        )  # fmt: skip

    def hold(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        """The keeper ends the command and tells its owner how to start it again."""
        self._order(target, "hold", decision_id, reason=reason, grace_s=STOP_GRACE_S)

    def cancel(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        self._order(target, "cancel", decision_id, reason=reason, grace_s=STOP_GRACE_S)

    def _order(self, target: JobTarget, command: str, decision_id: str, **more: Any) -> None:
        """Send an order to the keeper. Raises as ``SchedulerPort`` says."""
        if not target.handle:
            raise PermanentError(
                f"job {target.job.job_id} cannot get the command {command}: it was not started by tidegauge run"
            )
        request = {"command": command, "id": decision_id, "restarts": target.handle.get("restarts"), **more}
        value = _value(target, self._ask(target, request))
        done = "already done" if value.get("already") else "accepted"
        log.info("decision %s: %s of job %s %s", decision_id, command, target.job.job_id, done)

    def _ask(self, target: JobTarget, request: Mapping[str, Any]) -> Reply:
        node_id = str(target.handle.get("node", ""))
        return self._commands.ask_launch(target.job, node_id, target.handle, request, timeout_s=LAUNCH_TIMEOUT_S)

    def _presence_of_ranks(self, target: JobTarget) -> Presence:
        if target.incarnation != _ranks_incarnation([rank.process for rank in target.ranks]):
            return Presence.GONE  # no run of ours
        replies = self._commands.ask_ranks(target.job, target.ranks, {"command": "ping"}, timeout_s=RANK_TIMEOUT_S)
        if any(reply.value is not None for reply in replies.values()):
            return Presence.RUNNING
        if all(reply.kind == GONE for reply in replies.values()):
            return Presence.GONE
        errors = sorted(reply.error for reply in replies.values() if reply.error is not None and reply.kind != GONE)
        raise TemporaryError(f"job {target.job.job_id}: no rank answers: {errors[0]}")

    def _check_running(self, target: JobTarget) -> None:
        """Raises ``ChangedError`` for a run that is over."""
        seen = self.presence(target)
        if seen is not Presence.RUNNING:
            raise ChangedError(f"job {target.job.job_id}: its run {target.incarnation} is over ({seen.value})")


def _kept(job: JobView, launch: LaunchSummary, node_id: str) -> SchedulerFacts:
    requeue = {ActionKind.REQUEUE} if launch.requeueable else set()
    return SchedulerFacts(
        incarnation=f"{launch.process.pid}-{launch.process.start_ticks}#{launch.restarts}",
        running=launch.state is LaunchState.RUNNING,
        requeueable=launch.requeueable,
        exempt=launch.exempt,
        restarts=launch.restarts,
        started_unix_s=launch.started_unix_s,
        gpu_share=launch.gpu_share,
        can=frozenset(ActionKind) - {ActionKind.REQUEUE} | requeue,
        handle={
            "pid": launch.process.pid,
            "start_ticks": launch.process.start_ticks,
            "restarts": launch.restarts,
            "node": node_id,
            "torch_version": common(rank.identity.torch_version for rank in job.ranks if rank.alive),
        },
    )


def _alone(job: JobView) -> SchedulerFacts:
    """Facts of a job without a keeper: it is the run of its ranks' processes, and runs as long as they do."""
    living = [rank for rank in job.ranks if rank.alive]
    return SchedulerFacts(
        incarnation=_ranks_incarnation([rank.process for rank in living]),
        running=job.running,
        requeueable=False,
        gpu_share=common(rank.identity.gpu_share for rank in living),
        can=THROUGH_RANKS,
    )


def _ranks_incarnation(processes: Sequence[ProcessId]) -> str:
    first = min(processes, key=lambda process: (process.start_ticks, process.pid), default=None)
    return "no ranks" if first is None else f"ranks since {first.pid}-{first.start_ticks}"


def _value(target: JobTarget, reply: Reply) -> Mapping[str, Any]:
    """The value of a positive reply. Raises the error that a negative one means."""
    if reply.value is not None:
        return reply.value
    what = f"job {target.job.job_id}: {reply.error}"
    if reply.kind in ("changed", GONE):
        raise ChangedError(what)
    if reply.kind == "refused":
        raise PermanentError(what)
    raise TemporaryError(what, retry_after_s=BUSY_RETRY_S if reply.kind == "busy" else 5.0)
