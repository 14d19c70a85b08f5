"""The conditions of a rule (``when``): which incidents of which jobs it is for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from tidegauge.core.alloc_conf import parse_alloc_conf
from tidegauge.core.incidents import Incident, IncidentCause
from tidegauge.core.incidents.actions import JobFacts
from tidegauge.core.verdicts import Severity
from tidegauge_scheduler_hooks.policy.durations import Duration

AnySized = TypeVar("AnySized", tuple[Any, ...], dict[str, str])


class PolicyModel(BaseModel):
    """The base of all parts of a policy: no unknown keys, immutable, docstrings as descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, str_strip_whitespace=True)


def _as_list(value: Any) -> Any:
    """A single word stands for a list of one."""
    return [value] if isinstance(value, str) else value


def _as_text(value: Any) -> Any:
    """YAML reads ``expandable_segments: True`` as a boolean and ``max_split_size_mb: 64`` as a number."""
    if isinstance(value, dict):
        return {key: str(one) if isinstance(one, (bool, int, float)) else one for key, one in value.items()}
    return value


def _one_or_more(item: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [item, {"type": "array", "items": item}]})


def not_empty(value: AnySized) -> AnySized:
    """``value``. Raises ``ValueError`` for an empty list or mapping, which is never meant.

    Not pydantic's ``min_length``, which also complains about a list whose items were wrong."""
    if not value:
        raise ValueError("it is empty; leave it out or list at least one")
    return value


Causes = Annotated[
    tuple[IncidentCause, ...],
    BeforeValidator(_as_list),
    AfterValidator(not_empty),
    _one_or_more({"enum": [cause.value for cause in IncidentCause]}),
]
Globs = Annotated[tuple[str, ...], BeforeValidator(_as_list), _one_or_more({"type": "string"})]
"""Shell patterns (``*``, ``?``, ``[ab]``), upper and lower case told apart."""
SomeGlobs = Annotated[Globs, AfterValidator(not_empty)]
Settings = Annotated[
    dict[str, str],
    BeforeValidator(_as_text),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "boolean", "number"]}}),
]


class When(PolicyModel):
    """All that is given must hold; what is left out does not matter. Something that is not known matches nothing."""

    cause: Causes | None = None
    """What grows or happened: one cause or a list."""
    severity: Severity | None = None
    """This or worse."""
    oom_within: Duration | None = None
    """The near end of the time to out-of-memory is at most this. The near end, because memory runs out
    before the likely time half of the times: who waits for that acts too late on every second job."""
    scope: Literal["rank", "job"] | None = None
    """``rank``: some ranks stand out; ``job``: most ranks do it alike."""
    scheduler: SomeGlobs | None = None
    """Adapter of the job: ``local``, ``ray``, ``slurm``, ``kubernetes``."""
    checkpoint: bool | None = None
    """Whether the job can be asked to save its state in a way that gives proof (docs/policy.md)."""
    requeueable: bool | None = None
    """Whether the owner allows the job to be ended and started again. Never assumed: a job that no scheduler knows is
    not requeueable."""
    shared_gpu: bool | None = None
    """Whether another job's ranks are on one of its GPUs."""
    restarts_at_least: int | None = Field(default=None, ge=1)
    """The job was started again this many times or more, by anybody."""
    requeues_at_least: int | None = Field(default=None, ge=1)
    """Tidegauge requeued the job this many times or more within ``brakes.requeues_within``."""
    alloc_conf_has: Annotated[Settings, AfterValidator(not_empty)] | None = None
    """All of these allocator settings are in force, such as ``{expandable_segments: True}``."""
    user: SomeGlobs | None = None
    """Owner's login name."""
    job_name: SomeGlobs | None = None
    """As the owner named it."""
    account: SomeGlobs | None = None
    """As the scheduler says, as are the next three."""
    partition: SomeGlobs | None = None
    """Partition or queue."""
    namespace: SomeGlobs | None = None
    """Of the pod."""
    qos: SomeGlobs | None = None
    """Quality of service."""

    def matches(self, incident: Incident, facts: JobFacts, *, requeues: int, now_s: float) -> bool:
        """Whether the rule is for this incident now. ``requeues``: how often Tidegauge requeued the job so far."""
        scheduler = facts.scheduler_facts
        return (
            (self.cause is None or incident.key.cause in self.cause)
            and (self.severity is None or incident.severity.level >= self.severity.level)
            and (self.oom_within is None or seconds_left(incident, now_s=now_s) <= self.oom_within)
            and self.scope in (None, "job" if incident.common else "rank")
            and self.checkpoint in (None, facts.checkpoint is not None)
            and self.requeueable in (None, scheduler is not None and scheduler.requeueable)
            and self.shared_gpu in (None, facts.shared_gpu)
            and (self.restarts_at_least is None or _restarts(facts) >= self.restarts_at_least)
            and (self.requeues_at_least is None or requeues >= self.requeues_at_least)
            and (self.alloc_conf_has is None or settings_in_force(facts, self.alloc_conf_has))
            and (self.scheduler is None or matches_any(facts.target.scheduler, self.scheduler))
            and (self.user is None or matches_any(facts.user_name, self.user))
            and (self.job_name is None or matches_any(facts.job_name, self.job_name))
            and all(
                patterns is None or (scheduler is not None and matches_any(getattr(scheduler, name), patterns))
                for name, patterns in (
                    ("account", self.account),
                    ("partition", self.partition),
                    ("namespace", self.namespace),
                    ("qos", self.qos),
                )
            )
        )

    def covers(self, other: When) -> bool:
        """Whether this matches all that ``other`` matches, as far as the two alone show."""
        return all(
            getattr(self, name) is None
            or (getattr(other, name) is not None and _is_wider(name, getattr(self, name), getattr(other, name)))
            for name in type(self).model_fields
        )


def seconds_left(incident: Incident, *, now_s: float) -> float:
    """The near end of the time to out-of-memory, counted from ``now_s``; infinite if it is not known. At least 0."""
    if incident.seconds_to_oom is None:
        return math.inf
    return max(incident.seconds_to_oom.low - (now_s - incident.updated_unix_s), 0.0)


def settings_in_force(facts: JobFacts, settings: dict[str, str]) -> bool:
    """Whether the job runs with all of these allocator settings already."""
    in_force = parse_alloc_conf(facts.alloc_conf or "")
    return all(in_force.get(key) == value for key, value in settings.items())


def matches_any(text: str | None, patterns: Iterable[str]) -> bool:
    """Whether one of the shell patterns fits; none fits an unknown text."""
    return text is not None and any(fnmatchcase(text, pattern) for pattern in patterns)


def _restarts(facts: JobFacts) -> int:
    return 0 if facts.scheduler_facts is None else facts.scheduler_facts.restarts


def _is_wider(name: str, wide: Any, narrow: Any) -> bool:
    """Whether condition ``name`` with value ``wide`` holds wherever it holds with ``narrow``."""
    if name == "severity":
        return bool(wide.level <= narrow.level)
    if name in ("restarts_at_least", "requeues_at_least"):
        return bool(wide <= narrow)
    if name == "oom_within":
        return bool(wide >= narrow)
    if name == "alloc_conf_has":
        return bool(wide.items() <= narrow.items())
    return set(narrow) <= set(wide) if isinstance(wide, tuple) else bool(wide == narrow)
