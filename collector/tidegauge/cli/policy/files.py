"""``tidegauge policy check``, ``show`` and ``schema`` print policy files, the policy in force and their schema."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegauge.cli.arguments import OUTPUT, add_examples, add_json, group
from tidegauge.cli.errors import BAD_NEWS, FINE, CommandError, UsageError, need
from tidegauge.cli.output import print_json, print_table, print_wrapped
from tidegauge.cli.service_api import add_api_arguments, ask, read
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.incidents.wording import MODE_WORDS

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tidegauge_scheduler_hooks.policy.models import Policy, Rule


def prepare_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="policy file")
    add_json(parser)


def prepare_show(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    output = group(parser, OUTPUT)
    output.add_argument("--yaml", action="store_true", help="print the file as it is, with comments")
    output.add_argument("--default", action="store_true", help="print the file of the default policy")
    add_examples(
        parser,
        "tidegauge policy show                            rules and brakes in force",
        "tidegauge policy show --default > policy.yaml    start a policy of your own",
    )


def prepare_schema(parser: argparse.ArgumentParser) -> None:
    del parser  # it takes no arguments


def check(args: argparse.Namespace) -> int:
    need_policy()
    from tidegauge_scheduler_hooks.policy.check import check_policy

    findings = check_policy(read_file(args.file))
    if args.json:
        found = [{"level": one.level, "line": one.line, "message": one.message} for one in findings.found]
        print_json({"usable": findings.policy is not None, "findings": found})
        return FINE if findings.policy is not None else BAD_NEWS
    for one in findings.found:
        where = f"{args.file}:{one.line}" if one.line is not None else str(args.file)
        print_wrapped(f"{where}: {one.level}: ", one.message)
    if findings.policy is None:
        print(f"{args.file} is not a valid policy")
        return BAD_NEWS
    if findings.found:
        print()
    print_summary(findings.policy)
    return FINE


def show(args: argparse.Namespace) -> int:
    need_policy()
    from tidegauge_scheduler_hooks.policy.check import check_policy
    from tidegauge_scheduler_hooks.policy.files import DEFAULT_FILE

    path = DEFAULT_FILE if args.default else _file_in_force(args) or DEFAULT_FILE
    text = read_file(path)
    if args.default or args.yaml:
        print(text, end="")
        return FINE
    policy = check_policy(text).policy
    if policy is None:
        raise CommandError(f"{path} has changed and is no longer valid: run `tidegauge policy check {path}`")
    if args.json:
        print(policy.model_dump_json(indent=2))
        return FINE
    print(f"in force: {'the default policy' if path == DEFAULT_FILE else path}\n")
    print_summary(policy)
    return FINE


def schema(args: argparse.Namespace) -> int:
    del args  # it has none
    need_policy()
    from tidegauge_scheduler_hooks.policy.models import schema as policy_schema

    print_json(policy_schema())
    return FINE


def need_policy() -> None:
    """Raise ``CommandError`` if the packages that read policies are missing."""
    for module in ("pydantic", "yaml"):
        need(module, extra="agent", what="the policy")


def read_file(path: Path) -> str:
    """The text of a policy file. Raises ``CommandError``."""
    from tidegauge_scheduler_hooks.policy.files import PolicyFileError, read_policy

    try:
        return read_policy(path)
    except PolicyFileError as error:
        raise UsageError(str(error)) from error


def _file_in_force(args: argparse.Namespace) -> Path | None:
    """The file of the policy in force; ``None``: the default. Raises ``CommandError`` if it cannot be shown."""
    from tidegauge.cluster.api.loop_api import POLICY_FILE_UNTOLD

    found = read(LoopStatus, ask(args, "/api/v1/policy"))
    if found.policy_file == POLICY_FILE_UNTOLD:
        raise CommandError("the policy in force is a file on the head; only admins (api_admins) can see its path")
    if found.policy_problem is not None:
        raise CommandError(
            f"{found.policy_problem}. The last valid policy stays in force, or the default policy if the service "
            "started with this file",
            exit_code=BAD_NEWS,
        )
    if found.policy_file is not None and args.api:
        raise CommandError(f"the policy in force is the file {found.policy_file} on the head: run this there")
    return None if found.policy_file is None else Path(found.policy_file)


def print_summary(policy: Policy) -> None:
    """Print mode, rules with their ladders, and brakes; rules are shown without their default values."""
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
    """The fields that the file sets."""
    return [(name, getattr(model, name)) for name in type(model).model_fields if name in model.model_fields_set]


def _written(name: str, value: Any) -> str:
    """A value as in the file; floats other than ``share`` are durations in seconds."""
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
