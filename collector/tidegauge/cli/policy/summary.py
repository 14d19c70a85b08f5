"""A policy as a page: its mode, its rules and their ladders, its brakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidegauge.cli.output import print_table
from tidegauge.cli.timeline import MODE_WORDS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tidegauge_scheduler_hooks.policy.models import Policy, Rule


def print_summary(policy: Policy) -> None:
    """Defaults are left out of the rules, and shown among the brakes."""
    print(f"mode {policy.mode}: {MODE_WORDS[policy.mode]}\n")
    if policy.rules:
        rows = [(str(number), rule.name, _when(rule), _ladder(rule)) for number, rule in enumerate(policy.rules, 1)]
        print_table(("rule", "name", "when", "ladder"), rows)
    else:
        print("no rules: no actions")
    print()
    print_table(("brake", "value"), list(_brakes(policy.brakes)))


def _when(rule: Rule) -> str:
    return ", ".join(f"{name}: {_written(name, value)}" for name, value in _given(rule.when)) or "always"


def _ladder(rule: Rule) -> str:
    rungs = []
    for rung in rule.ladder:
        details = [f"{name} {_written(name, value)}" for name, value in _given(rung) if name not in ("action", "text")]
        rungs.append(rung.action + (f" ({', '.join(details)})" if details else ""))
    return ", ".join(f"{number}. {rung}" for number, rung in enumerate(rungs, 1))


def _brakes(brakes: BaseModel, prefix: str = "") -> Iterator[Sequence[str]]:
    for name in type(brakes).model_fields:
        value = getattr(brakes, name)
        if hasattr(value, "model_fields_set"):
            yield from _brakes(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _written(name, value)


def _given(model: BaseModel) -> list[tuple[str, Any]]:
    """What the file says itself."""
    return [(name, getattr(model, name)) for name in type(model).model_fields if name in model.model_fields_set]


def _written(name: str, value: Any) -> str:
    """A value as the file would have it; every number with a fraction but ``share`` is a duration in seconds."""
    from tidegauge_scheduler_hooks.policy.durations import write_duration

    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and name != "share":
        return write_duration(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}:{one}" for key, one in value.items())
    if isinstance(value, tuple):
        return " or ".join(_written(name, one) for one in value) or "-"
    return str(getattr(value, "value", value))
