"""What is wrong with a policy's text: all of it at once, with the lines, and with the valid choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tidegauge_scheduler_hooks.policy.lint import lint
from tidegauge_scheduler_hooks.policy.models import Policy
from tidegauge_scheduler_hooks.policy.rungs import Rung
from tidegauge_scheduler_hooks.policy.yaml_lines import YamlError, read

RUNGS: dict[str, type[BaseModel]] = {
    get_args(model.model_fields["action"].annotation)[0]: model for model in get_args(get_args(Rung)[0])
}
"""The kinds of rungs by their action."""


MAX_MESSAGE_CHARS = 1_000
"""Characters: twice the longest that lists keys."""


@dataclass(frozen=True)
class PolicyFinding:
    """One thing to put right (``error``) or to think about (``warning``)."""

    level: str
    line: int | None
    """From 1; ``None``: the file as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{'' if self.line is None else f'line {self.line}: '}{self.level}: {self.message}"


@dataclass(frozen=True)
class Findings:
    """What ``check_policy`` found, by line. ``policy`` is there unless there is an error."""

    found: tuple[PolicyFinding, ...]
    policy: Policy | None

    @property
    def errors(self) -> tuple[PolicyFinding, ...]:
        return tuple(one for one in self.found if one.level == "error")

    @property
    def warnings(self) -> tuple[PolicyFinding, ...]:
        return tuple(one for one in self.found if one.level == "warning")


def check_policy(text: str) -> Findings:
    """All that is wrong or odd with a policy file's text."""
    try:
        document = read(text)
    except YamlError as error:
        return Findings((PolicyFinding("error", error.line, _cut(str(error))),), None)
    if not isinstance(document.value, dict):
        return Findings((PolicyFinding("error", document.line(()), "a policy consists of lines `key: value`"),), None)
    try:
        policy = Policy.model_validate(document.value)
    except ValidationError as error:
        wrong = [PolicyFinding("error", document.line(_path(one)), _cut(_said(one))) for one in error.errors()]
        return Findings(_by_line(wrong), None)
    found = [PolicyFinding(one.level, document.line(one.path), one.message) for one in lint(policy)]
    return Findings(_by_line(found), None if any(one.level == "error" for one in found) else policy)


def _by_line(found: Sequence[PolicyFinding]) -> tuple[PolicyFinding, ...]:
    return tuple(sorted(found, key=lambda one: one.line or 0))


def _cut(message: str) -> str:
    """A message quotes the file, and the file may have a key of a thousand letters."""
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 3] + "..."


def _path(error: Any) -> tuple[str | int, ...]:
    return tuple(error["loc"])


def _said(error: Any) -> str:
    """pydantic's complaint in our words."""
    path, kind, value = _path(error), error["type"], error.get("input")
    name = ".".join(str(part) for part in path if not (isinstance(part, str) and part in RUNGS)) or "the policy"
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
    return f"{name}: {_short(value)} is not valid: {message[:1].lower()}{message[1:]}"


def _keys(path: Sequence[str | int]) -> list[str]:
    """The keys that are possible where ``path`` leads to."""
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


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
