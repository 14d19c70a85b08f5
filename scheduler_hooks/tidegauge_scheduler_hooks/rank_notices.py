"""Telling a job's owner where the job prints, through its first rank: for schedulers that let nobody else do it."""

from __future__ import annotations

from tidegauge.core.incidents.actions import JobTarget
from tidegauge_scheduler_hooks.checkpoint import RANK_TIMEOUT_S
from tidegauge_scheduler_hooks.ports import PermanentError, ProcessCommands, TemporaryError

NO_SUCH_COMMAND = "no such command"
"""How a probe from before this command answers."""


def tell_through_rank(commands: ProcessCommands, target: JobTarget, text: str, *, decision_id: str) -> None:
    """Lines on the first rank's stderr; the rank prints the same decision's once.

    Raises ``TemporaryError`` if it did not answer, ``PermanentError`` if its probe is too old.
    """
    first = min(target.ranks, default=None)
    if first is None:
        raise TemporaryError(f"job {target.job.job_id}: no rank to print the message")
    request = {"command": "tell", "id": decision_id, "text": text}
    reply = commands.ask_ranks(target.job, [first], request, timeout_s=RANK_TIMEOUT_S)[first.rank]
    if reply.error is None:
        return
    kind = PermanentError if NO_SUCH_COMMAND in reply.error else TemporaryError
    raise kind(f"job {target.job.job_id}: rank {first.rank} did not print the message: {reply.error}")
