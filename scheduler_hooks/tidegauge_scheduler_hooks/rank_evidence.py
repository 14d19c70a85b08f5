"""Asking the rank that an incident is about for evidence: the same under every scheduler."""

from __future__ import annotations

from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.evidence.request import evidence_request, window_for
from tidegauge.core.incidents.actions import Decision, RankTarget
from tidegauge.core.orders import GONE
from tidegauge_scheduler_hooks.checkpoint import RANK_TIMEOUT_S
from tidegauge_scheduler_hooks.ports import PermanentError, ProcessCommands, TemporaryError
from tidegauge_scheduler_hooks.rank_notices import NO_SUCH_COMMAND

UNABLE, BUSY = "unable", "busy"
"""Kinds of a rank's answer: it never can; it is recording for somebody else."""
BUSY_AGAIN_S = 60.0


def ask_for_evidence(commands: ProcessCommands | None, decision: Decision) -> str:
    """Have the rank to look at first collect evidence; returns what it said, for people. The evidence itself comes with
    its node's reports, and goes to the incident. Its id is the decision's, so that asking twice is harmless.

    Raises ``TemporaryError``, ``PermanentError``.
    """
    job, first = decision.target.job, next(iter(decision.incident.findings), None)
    if commands is None or first is None:
        raise PermanentError(f"job {job.job_id}: no rank is known that could be asked for evidence")
    target = RankTarget(first.rank, first.node_id, first.process, first.step)
    request = evidence_request(decision.decision_id, EvidenceReason.POLICY, window_for(first.verdict))
    reply = commands.ask_ranks(job, [target], request, timeout_s=RANK_TIMEOUT_S)[first.rank]
    if reply.error is None:
        return f"rank {first.rank} collects evidence {decision.decision_id}"
    what = f"job {job.job_id}: rank {first.rank} gives no evidence: {reply.error}"
    if reply.kind == BUSY:
        raise TemporaryError(what, retry_after_s=BUSY_AGAIN_S)
    if reply.kind in (GONE, UNABLE) or NO_SUCH_COMMAND in reply.error:
        raise PermanentError(what)
    raise TemporaryError(what)
