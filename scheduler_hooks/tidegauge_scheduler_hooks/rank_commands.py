"""Commands to the ranks of a job that are the same under every scheduler: cap, print a message, collect evidence."""

from __future__ import annotations

from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.evidence.request import evidence_request, window_for
from tidegauge.core.incidents.actions import Decision, JobTarget, RankTarget
from tidegauge.core.orders import GONE
from tidegauge_scheduler_hooks.checkpoint import RANK_TIMEOUT_S
from tidegauge_scheduler_hooks.ports import PermanentError, ProcessCommands, TemporaryError

NO_SUCH_COMMAND = "no such command"
"""A probe that is older than the command answers this."""
UNABLE, BUSY = "unable", "busy"
"""Kinds of a rank's refusal: it never can; it is recording for another request."""
BUSY_AGAIN_S = 60.0


def cap_ranks(commands: ProcessCommands, target: JobTarget, fraction: float) -> str:
    """Set the memory fraction of every rank; returns what was set, for people. A repetition is harmless.

    Raises ``TemporaryError`` unless all ranks accepted it."""
    request = {"command": "fraction", "value": fraction}
    replies = commands.ask_ranks(target.job, target.ranks, request, timeout_s=RANK_TIMEOUT_S)
    errors = [f"rank {rank}: {reply.error}" for rank, reply in sorted(replies.items()) if reply.error is not None]
    if errors or not replies:
        why = "; ".join(errors[:3]) or "no rank known"
        raise TemporaryError(f"job {target.job.job_id}: {len(errors)} of {len(replies)} ranks not capped: {why}")
    return f"memory fraction {fraction:g} on {len(replies)} of {len(replies)} ranks"


def tell_through_rank(commands: ProcessCommands, target: JobTarget, text: str, *, decision_id: str) -> None:
    """Print lines on the first rank's stderr; the rank prints those of one decision once.

    Raises ``TemporaryError`` if it did not answer, ``PermanentError`` if its probe is too old."""
    first = min(target.ranks, default=None)
    if first is None:
        raise TemporaryError(f"job {target.job.job_id}: no rank to print the message")
    request = {"command": "tell", "id": decision_id, "text": text}
    reply = commands.ask_ranks(target.job, [first], request, timeout_s=RANK_TIMEOUT_S)[first.rank]
    if reply.error is None:
        return
    kind = PermanentError if NO_SUCH_COMMAND in reply.error else TemporaryError
    raise kind(f"job {target.job.job_id}: rank {first.rank} did not print the message: {reply.error}")


def ask_for_evidence(commands: ProcessCommands | None, decision: Decision) -> str:
    """Have the most affected rank collect evidence; returns its answer, for people. The evidence comes with its node's
    reports. Its id is the decision's, so that a repetition is harmless.

    Raises ``TemporaryError``, ``PermanentError``."""
    job, first = decision.target.job, next(iter(decision.incident.findings), None)
    if commands is None or first is None:
        raise PermanentError(f"job {job.job_id}: no rank to request evidence from")
    target = RankTarget(first.rank, first.node_id, first.process, first.step)
    request = evidence_request(decision.decision_id, EvidenceReason.POLICY, window_for(first.verdict))
    reply = commands.ask_ranks(job, [target], request, timeout_s=RANK_TIMEOUT_S)[first.rank]
    if reply.error is None:
        return f"rank {first.rank} is collecting evidence {decision.decision_id}"
    what = f"job {job.job_id}: rank {first.rank} cannot collect evidence: {reply.error}"
    if reply.kind == BUSY:
        raise TemporaryError(what, retry_after_s=BUSY_AGAIN_S)
    if reply.kind in (GONE, UNABLE) or NO_SUCH_COMMAND in reply.error:
        raise PermanentError(what)
    raise TemporaryError(what)
