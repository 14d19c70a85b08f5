"""One incident walked through a policy: what is decided when, with outcomes of a test's choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from sample_views import NOW_S
from scheduler_values import facts, incident, record
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import ActionKind, Decision, Disposition, JobFacts, Outcome
from tidegauge_scheduler_hooks.policy.decide import decide
from tidegauge_scheduler_hooks.policy.models import Policy
from tidegauge_scheduler_hooks.policy.state import PolicyState

FREE_BRAKES: Mapping[str, Any] = {"warnings_before_stop": 0, "min_age": 0, "warning_interval": 60}
"""Brakes that hold nothing that a test is not about."""


def policy(ladder: str, *, mode: str = "act", when: str = "{}", **brakes: Any) -> Policy:
    """One rule named ``rule``; ladder and condition in YAML's flow form."""
    return Policy.model_validate(
        {
            "version": 1,
            "mode": mode,
            "brakes": {**FREE_BRAKES, **brakes},
            "rules": [{"name": "rule", "when": yaml.safe_load(when), "ladder": yaml.safe_load(ladder)}],
        }
    )


class Run:
    """An incident that was opened at ``NOW_S``, and what was decided about it. Times are seconds since then."""

    def __init__(self, chosen: Policy, *, of_job: JobFacts | None = None, **changes: Any) -> None:
        self.policy = chosen
        self.facts = facts() if of_job is None else of_job
        self.incident: Incident = incident(**{"opened_unix_s": NOW_S, **changes})
        self.state = PolicyState()
        self.decisions: list[Decision] = []

    def at(self, second: float) -> list[str]:
        """What is decided then, as ``do notify``, ``would cap``, ``withheld requeue: warnings``."""
        made, self.state = decide(self.incident, self.facts, self.policy, self.state, now_s=NOW_S + second)
        self.decisions += made
        return [told(one) for one in made]

    def finish(self, second: float, outcome: Outcome = Outcome.DONE) -> None:
        """What was decided last ends."""
        over = record(self.decisions[-1], outcome, finished_s=NOW_S + second)
        self.state = self.state.with_records([over])

    def until(self, end: int, *, step: int = 60, outcome: Outcome = Outcome.DONE) -> list[tuple[int, str]]:
        """All that is decided up to then, each ending at once in the same way; with the seconds."""
        made: list[tuple[int, str]] = []
        for second in range(0, end + 1, step):
            while now := self.at(second):
                made += [(second, one) for one in now]
                if self.decisions[-1].disposition is Disposition.DO:
                    self.finish(second, outcome)
        return made

    @property
    def last(self) -> Decision:
        return self.decisions[-1]

    def text(self) -> str:
        """Of the message decided last."""
        messages = [one for one in self.decisions if one.action is ActionKind.NOTIFY]
        return str(messages[-1].parameters["text"])


def told(decision: Decision) -> str:
    """A decision in a few words."""
    brake = f": {decision.brake}" if decision.brake else ""
    return f"{decision.disposition.value} {decision.action.value}{brake}"
