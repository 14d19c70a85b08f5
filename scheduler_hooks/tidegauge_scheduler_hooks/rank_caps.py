"""Capping a job's ranks through their probes: the same under every scheduler."""

from __future__ import annotations

from tidegauge.core.incidents.actions import JobTarget
from tidegauge_scheduler_hooks.checkpoint import RANK_TIMEOUT_S
from tidegauge_scheduler_hooks.ports import ProcessCommands, TemporaryError


def cap_ranks(commands: ProcessCommands, target: JobTarget, fraction: float) -> str:
    """Set the memory fraction of every rank; returns what was set, for people. Doing it twice is harmless.

    Raises ``TemporaryError`` unless all of them said yes.
    """
    request = {"command": "fraction", "value": fraction}
    replies = commands.ask_ranks(target.job, target.ranks, request, timeout_s=RANK_TIMEOUT_S)
    errors = [f"rank {rank}: {reply.error}" for rank, reply in sorted(replies.items()) if reply.error is not None]
    if errors or not replies:
        why = "; ".join(errors[:3]) or "no rank known"
        raise TemporaryError(f"job {target.job.job_id}: {len(errors)} of {len(replies)} ranks not capped: {why}")
    return f"memory fraction {fraction:g} on {len(replies)} of {len(replies)} ranks"
