"""Checks the text of a policy: reports all errors and warnings at once, with lines and valid choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel, ValidationError

from tidegauge.core.incidents import IncidentCause
from tidegauge.core.verdicts import Severity
from tidegauge_scheduler_hooks.policy.allocator_settings import EXPANDABLE
from tidegauge_scheduler_hooks.policy.durations import write_duration
from tidegauge_scheduler_hooks.policy.ladder import checkpoint_before, stop_after
from tidegauge_scheduler_hooks.policy.models import Brakes, Policy, Rule
from tidegauge_scheduler_hooks.policy.rungs import CheckpointRung, NotifyRung, RequeueRung, Rung, StopRung, stops
from tidegauge_scheduler_hooks.policy.yaml_lines import YamlError, read

RUNGS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["action"].annotation)[0]: model for model in get_args(get_args(Rung)[0])
}
"""The kinds of rungs by their action."""
MAX_MESSAGE_CHARS = 1_000
"""Characters: twice the longest that lists keys."""


@dataclass(frozen=True)
class PolicyFinding:
    """An error to correct or a warning to consider."""

    level: str
    line: int | None
    """From 1; ``None``: the file as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{'' if self.line is None else f'line {self.line}: '}{self.level}: {self.message}"


@dataclass(frozen=True)
class Findings:
    """The findings by line. ``policy`` is there unless there is an error."""

    found: tuple[PolicyFinding, ...]
    policy: Policy | None

    @property
    def errors(self) -> tuple[PolicyFinding, ...]:
        return tuple(one for one in self.found if one.level == "error")

    @property
    def warnings(self) -> tuple[PolicyFinding, ...]:
        return tuple(one for one in self.found if one.level == "warning")


def check_policy(text: str) -> Findings:
    try:
        document = read(text)
    except YamlError as error:
        return Findings((PolicyFinding("error", error.line, _cut(str(error))),), None)
    if not isinstance(document.value, dict):
        return Findings((PolicyFinding("error", document.line(()), "a policy consists of lines `key: value`"),), None)
    try:
        policy = Policy.model_validate(document.value)
    except ValidationError as error:
        wrong = [
            PolicyFinding("error", document.line(one["loc"]), _cut(_said(one, document.value)))
            for one in error.errors()
        ]
        return Findings(_by_line(wrong), None)
    found = [PolicyFinding(one.level, document.line(one.path), one.message) for one in lint(policy)]
    return Findings(_by_line(found), None if any(one.level == "error" for one in found) else policy)


def _by_line(found: Sequence[PolicyFinding]) -> tuple[PolicyFinding, ...]:
    return tuple(sorted(found, key=lambda one: one.line or 0))


def _cut(message: str, max_chars: int = MAX_MESSAGE_CHARS) -> str:
    """A message quotes the file, and the file may have a key of a thousand letters."""
    return message if len(message) <= max_chars else message[: max_chars - 3] + "..."


def _named(path: Sequence[str | int], policy: Any) -> str:
    """``path`` as people count: "rule leak, rung 2: after", with the number of a rule that has no name."""
    parts = [part for part in path if not (isinstance(part, str) and part in RUNGS)]
    if len(parts) < 2 or parts[0] != "rules" or not isinstance(parts[1], int):
        return ".".join(map(str, parts)) or "the policy"
    rules = policy["rules"]
    rule = rules[parts[1]] if isinstance(rules, list) else None
    name = rule.get("name") if isinstance(rule, dict) else None
    place, rest = f"rule {_cut(name, 60) if isinstance(name, str) else parts[1] + 1}", parts[2:]
    if len(rest) > 1 and rest[0] == "ladder" and isinstance(rest[1], int):
        place, rest = f"{place}, rung {rest[1] + 1}", rest[2:]
    return ", ".join(filter(None, (place, ".".join(part for part in rest if isinstance(part, str)))))


def _said(error: Any, policy: Any) -> str:
    """pydantic's complaint in our words."""
    path, kind, value = error["loc"], error["type"], error.get("input")
    name = _named(path, policy)
    if kind == "extra_forbidden":
        return f"unknown key {path[-1]!r}; the keys here are {', '.join(_keys(path[:-1]))}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        action = value.get("action") if isinstance(value, dict) else value
        return f"{name}: {action!r} is not an action; the actions are {', '.join(RUNGS)}"
    if kind == "missing":
        return f"{name} is missing" + ("; add `version: 1`" if path == ("version",) else "")
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind == "value_error":
        return f"{name}: {message}"
    return f"{name}: {_cut(repr(value), 60)} is not valid: {message[:1].lower()}{message[1:]}"


def _keys(path: Sequence[str | int]) -> list[str]:
    """The keys that are possible at ``path``."""
    model: type[BaseModel] = Policy
    for part in path:
        if isinstance(part, int):
            continue
        if part in RUNGS and model is not Policy:
            model = RUNGS[part]
        elif part in model.model_fields:
            inner = _model_in(model.model_fields[part].annotation)
            model = model if inner is None else inner
    return list(model.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = (_model_in(one) for one in get_args(annotation))
    return next((model for model in models if model is not None), None)


class LintFinding(NamedTuple):
    """A finding in a well-formed policy: ``error`` where it cannot be meant, ``warning`` where it may."""

    level: str
    path: tuple[str | int, ...]
    message: str


def lint(policy: Policy) -> Iterator[LintFinding]:
    """All findings: rungs that are never reached, stops that never come or come without their conditions."""
    if not policy.rules:
        yield LintFinding("warning", ("rules",), "no rules: Tidegauge never does anything")
    yield from _about_brakes(policy.brakes)
    for index, rule in enumerate(policy.rules):
        wider = next((one for one in policy.rules[:index] if one.when.covers(rule.when)), None)
        if wider is not None:
            message = (
                f"rule {rule.name} is never reached: rule {wider.name} before it matches everything that it matches"
            )
            yield LintFinding("error", ("rules", index, "name"), message)
        for rung in range(len(rule.ladder)):
            for level, message in _about_rung(policy, rule, rung):
                yield LintFinding(
                    level, ("rules", index, "ladder", rung), f"rule {rule.name}, rung {rung + 1}: {message}"
                )


def _about_brakes(brakes: Brakes) -> Iterator[LintFinding]:
    if brakes.min_severity is not Severity.CRITICAL:
        message = (
            "jobs are acted on even when their growth is no longer critical: most growth that slows down ends by "
            "itself (docs/detector.md)"
        )
        yield LintFinding("warning", ("brakes", "min_severity"), message)
    if brakes.warnings_before_stop == 0:
        yield LintFinding("warning", ("brakes", "warnings_before_stop"), "jobs may be stopped without a warning")


def _about_rung(policy: Policy, rule: Rule, index: int) -> Iterator[tuple[str, str]]:
    rung, when, brakes = rule.ladder[index], rule.when, policy.brakes
    causes = when.cause or tuple(IncidentCause)
    if any(stops(one) for one in rule.ladder[:index]):
        yield "error", "never reached: an earlier rung ends the job"
        return
    if stops(rung):
        yield from _about_stop(rule, index, rung, brakes)
    if rung.before_oom is not None and not any(cause.is_growth for cause in causes):
        yield "error", "never due: before_oom needs a predicted OOM, and only growth has one"
    least = when.severity.level if when.severity is not None else 0
    if rung.kind.is_acting and any(cause.is_growth for cause in causes) and least < brakes.min_severity.level:
        severity = brakes.min_severity.value
        yield "warning", f"growth below {severity} gets stuck here; `severity: {severity}` keeps it out of the rule"
    if isinstance(rung, CheckpointRung):
        if rung.before_oom is not None and rung.before_oom < rung.grace:
            yield "warning", "before_oom is less than grace: the job may run out of memory during the checkpoint"
        stop = stop_after(rule, index + 1)
        if when.checkpoint is not True and not (stop is not None and stop.without_checkpoint):
            yield "warning", "a job that cannot checkpoint gets stuck here; `checkpoint: true` keeps it out of the rule"
    if isinstance(rung, RequeueRung) and set(causes) == {IncidentCause.CUDA_GRAPHS} and rung.sets(EXPANDABLE):
        yield "error", "never done: expandable_segments does not fix private pools of CUDA graphs"
    if isinstance(rung, RequeueRung) and when.requeueable is not True:
        yield "warning", "a job that must not be requeued gets stuck here; `requeueable: true` keeps it out of the rule"


def _about_stop(rule: Rule, index: int, stop: StopRung, brakes: Brakes) -> Iterator[tuple[str, str]]:
    given, wanted = _warnings_before(rule, index, brakes), brakes.warnings_before_stop
    if given < wanted:
        yield (
            "error",
            f"never done: it requires {wanted} notify rungs before it, at least "
            f"{write_duration(brakes.warning_interval)} apart (brakes.warnings_before_stop and warning_interval), and "
            f"there are {given}",
        )
    if stop.without_checkpoint:
        yield "warning", "the job may be stopped without a proven checkpoint: work is lost"
        return
    checkpoint = checkpoint_before(rule, index)
    if checkpoint is None:
        yield "error", "never done: add a checkpoint before it, or `without_checkpoint: true` (work is lost)"
        return
    age_s = sum(rung.after for rung in rule.ladder[checkpoint + 1 : index + 1])
    if age_s > brakes.proof_max_age:
        yield "error", f"its checkpoint would be {write_duration(age_s)} old, more than brakes.proof_max_age"
    limits = (brakes.actions_per_hour, brakes.actions_per_user_per_hour, brakes.actions_per_job_per_hour)
    if min(limits) < 2:
        yield "warning", "never done: with its checkpoint it counts as two actions, and an hourly limit is below two"
    if isinstance(stop, RequeueRung) and brakes.requeues_per_job == 0:
        yield "warning", "never a requeue: brakes.requeues_per_job is 0, so when_used_up applies at once"


def _warnings_before(rule: Rule, index: int, brakes: Brakes) -> int:
    """The number of messages before the stop that are sure to count as warnings."""
    count, since_counted_s = 0, 0.0
    for rung in rule.ladder[:index]:
        since_counted_s += rung.after
        if isinstance(rung, NotifyRung) and (count == 0 or since_counted_s >= brakes.warning_interval):
            count, since_counted_s = count + 1, 0.0
    return count
