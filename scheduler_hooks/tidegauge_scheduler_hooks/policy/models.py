"""The model of a policy file: mode, rules, brakes. Read by pydantic; unknown keys are errors.

``docs/policy.md`` explains it to admins; its reference tables are made from the docstrings here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.verdicts import Severity
from tidegauge_scheduler_hooks.policy.conditions import Globs, PolicyModel, When, not_empty
from tidegauge_scheduler_hooks.policy.durations import Duration
from tidegauge_scheduler_hooks.policy.rungs import Rung

MEMORY_S = 30 * 86400.0
"""How far back decisions may count: nothing in a policy looks farther, and the audit is read back this far."""


Mode = Literal["observe", "warn", "act"]
"""What of all that is decided is carried out: nothing, not even a message; messages, remarks and evidence; all."""


def carries_out(mode: str, action: ActionKind) -> bool:
    """Whether this action is done in this mode, and not only written down."""
    return mode == "act" or (mode == "warn" and not action.is_acting)


class Breaker(PolicyModel):
    """The circuit breakers, of each user's jobs and of the whole cluster: when suddenly many jobs look sick, the
    cluster or Tidegauge is, not the jobs. For the cluster, one user counts as little more than half of what is allowed
    at most."""

    share: float = Field(default=0.1, gt=0, le=1)
    """It opens before more jobs than this share of all running ones would be acted on within ``window``."""
    window: Annotated[Duration, Field(gt=0, le=MEMORY_S)] = 3600.0
    """At most 30 days."""
    min_jobs: int = Field(default=3, ge=1)
    """This many jobs may always be acted on within ``window``: on a small cluster one job is a large share."""


class Exempt(PolicyModel):
    """Jobs that are never acted on; they still get messages, notes and evidence. Shell patterns (``*``, ``?``,
    ``[ab]``).
    What the owner says (``SchedulerFacts.exempt``, ``tidegauge run --no-actions``) always counts beside these."""

    users: Globs = ()
    """Login names."""
    accounts: Globs = ()
    """The scheduler's accounts."""
    partitions: Globs = ()
    """Partitions or queues."""
    namespaces: Globs = ()
    """Kubernetes namespaces."""
    qos: Globs = ()
    """Qualities of service."""
    job_names: Globs = ()
    """Names of jobs, as their owners gave them: anybody may exempt a job by its name, if such a pattern is here."""


class Brakes(PolicyModel):
    """What holds actions back, whatever the rules say."""

    warnings_before_stop: int = Field(default=2, ge=0, le=10)
    """Messages that must have reached the owner, in this incident, before its job is ended."""
    warning_interval: Duration = 300.0
    """Time between two messages that count as warnings, and between the last of them and the stop."""
    min_age: Duration = 120.0
    """An incident must have been open for this long before its job is acted on."""
    min_severity: Severity = Severity.CRITICAL
    """Growth must be at least this severe when the job is acted on. It is ``critical`` when its incident opens, and may
    have eased since.
    An out-of-memory and an exceeded share are facts, not forecasts: it does not apply to them."""
    proof_max_age: Annotated[Duration, Field(gt=0)] = 600.0
    """A job is ended on a proven checkpoint that is at most this old; on an older one, it is asked for a new one."""
    requeues_per_job: int = Field(default=3, ge=0)
    """How often Tidegauge requeues a job within ``requeues_within``; then the rung's ``when_used_up`` applies."""
    requeues_within: Annotated[Duration, Field(gt=0, le=MEMORY_S)] = 7 * 86400.0
    """A job that trains for months is not held because it was requeued months ago. At most 30 days."""
    actions_per_hour: int = Field(default=20, ge=0)
    """Caps, checkpoints, requeues, holds and cancels begun within any hour, whatever came of them."""
    actions_per_user_per_hour: int = Field(default=8, ge=0)
    """The same for the jobs of one user."""
    actions_per_job_per_hour: int = Field(default=4, ge=0)
    """The same for one job, over its attempts. A requeue counts as two: the checkpoint before it is one."""
    breaker: Breaker = Breaker()
    """The circuit breakers: of each user's jobs, and of all."""
    exempt: Exempt = Exempt()
    """Jobs that are never acted on."""


class Rule(PolicyModel):
    """What is done about which incidents."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=60)
    """Unique; the audit says it. Small letters, digits, ``-`` and ``_``."""
    when: When = When()
    """Left out: every incident."""
    ladder: Annotated[tuple[Rung, ...], AfterValidator(not_empty)]
    """What is done, one rung after the other: the next one not before the one before it is finished."""


class Policy(PolicyModel):
    """A whole policy."""

    version: Literal[1]
    """Of the file's form."""
    mode: Mode = "observe"
    """``observe``: nothing is done, the audit says what would have been. ``warn``: messages, remarks and evidence are.
    ``act``: all is."""
    brakes: Brakes = Brakes()
    """What holds actions back."""
    rules: tuple[Rule, ...] = ()
    """The first that matches an incident is the one that counts."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Policy:
        names = [rule.name for rule in self.rules]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two rules are named {twice[0]!r}: the audit could not tell them apart")
        return self


def schema() -> dict[str, Any]:
    """The JSON Schema of a policy file, for editors and checks elsewhere."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tidegauge policy",
        **{key: value for key, value in Policy.model_json_schema().items() if key != "title"},
    }
