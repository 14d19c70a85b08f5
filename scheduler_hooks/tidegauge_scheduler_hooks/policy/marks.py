"""The policy's memory of one decision, and the tenant and job that it counts for. Values only."""

from __future__ import annotations

from typing import NamedTuple

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import BREAKERS, ActionKind, Decision, Disposition, Outcome
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge_scheduler_hooks.policy.models import carries_out


class PolicyMark(NamedTuple):
    """The policy's memory of one decision."""

    decision_id: str
    incident: int
    rule: str
    rung: int
    action: ActionKind
    disposition: Disposition
    brake: str | None
    job: JobKey
    tenant: Tenant
    incarnation: str
    decided_s: float
    real: bool
    """Its mode would have let it be carried out."""
    reason: str
    breaker_reset_s: float | None
    """When the breakers had last been reset at that time; only of a decision that one of them withheld."""
    covers: frozenset[ProcessId] = frozenset()
    """Of a checkpoint: the processes that it is the state of."""
    outcome: Outcome | None = None
    finished_s: float | None = None

    @property
    def under_way(self) -> bool:
        """To be carried out, and not finished."""
        return self.disposition is Disposition.DO and self.outcome is None

    @property
    def done_s(self) -> float | None:
        """The time at which it was done, or would have been done; ``None``: it was not."""
        if self.disposition is Disposition.WOULD:
            return self.decided_s
        return self.ended_s if self.outcome is Outcome.DONE else None

    @property
    def ended_s(self) -> float:
        """The time at which it was over, however it ended."""
        return self.decided_s if self.finished_s is None else self.finished_s

    def counts(self, *, real: bool) -> bool:
        """Whether a decision that is real, or is not, may rest on it."""
        return self.disposition is Disposition.DO or (self.disposition is Disposition.WOULD and not real)


def mark_of(decision: Decision) -> PolicyMark:
    """The mark of a decision that was just made."""
    withheld_by_breaker = decision.brake in BREAKERS
    return PolicyMark(
        decision_id=decision.decision_id,
        incident=decision.incident.number,
        rule=decision.rule,
        rung=decision.rung,
        action=decision.action,
        disposition=decision.disposition,
        brake=decision.brake,
        job=decision.target.job,
        tenant=tenant_of(decision.target.job),
        incarnation=decision.target.incarnation,
        decided_s=decision.decided_s,
        real=carries_out(decision.mode, decision.action),
        reason=decision.reason,
        breaker_reset_s=decision.parameters.get("breaker_reset_s") if withheld_by_breaker else None,
        covers=decision.target.processes if decision.action is ActionKind.CHECKPOINT else frozenset(),
    )
