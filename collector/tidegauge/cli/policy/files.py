"""``tidegauge policy check``, ``show`` and ``schema``: policy files, and the policy in force."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegauge.cli.arguments import OUTPUT, add_examples, add_json, group
from tidegauge.cli.errors import BAD_NEWS, FINE, USAGE, CommandError, need
from tidegauge.cli.output import print_json, print_wrapped
from tidegauge.cli.policy.summary import print_summary
from tidegauge.cli.service_api import add_api_arguments, ask, read
from tidegauge.core.incidents.actions import LoopStatus


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
    """Raises ``CommandError`` where what reads policies is not installed."""
    for module in ("pydantic", "yaml"):
        need(module, extra="agent", what="the policy")


def read_file(path: Path) -> str:
    """A policy file's text. Raises ``CommandError``."""
    from tidegauge_scheduler_hooks.policy.files import PolicyFileError, read_policy

    try:
        return read_policy(path)
    except PolicyFileError as error:
        raise CommandError(str(error), exit_code=USAGE) from error


def _file_in_force(args: argparse.Namespace) -> Path | None:
    """The file of the policy in force; ``None``: the default. Raises ``CommandError`` where it cannot be shown."""
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
