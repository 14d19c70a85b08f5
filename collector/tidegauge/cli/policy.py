"""``tidegauge policy``: what is to be done about incidents, and the switch that stops all of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from tidegauge.cli import policy_files, policy_simulate, policy_status, policy_switch

HELP = "check, simulate and show what is done about incidents; pause and resume all actions"


class _Subcommand(NamedTuple):
    help: str
    prepare_parser: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


SUBCOMMANDS = {
    "status": _Subcommand("how policy and actions stand", policy_status.prepare_status, policy_status.status),
    "log": _Subcommand("every decision, and what came of it", policy_status.prepare_log, policy_status.log),
    "show": _Subcommand(
        "the policy in force, or the default to start from", policy_files.prepare_show, policy_files.show
    ),
    "check": _Subcommand("what is wrong or odd in a policy file", policy_files.prepare_check, policy_files.check),
    "simulate": _Subcommand(
        "what a policy file would have done to the incidents of the last days",
        policy_simulate.prepare,
        policy_simulate.run,
    ),
    "schema": _Subcommand("the JSON Schema of policy files", policy_files.prepare_schema, policy_files.schema),
    "pause": _Subcommand("stop all actions, at once (on the head)", policy_switch.prepare_pause, policy_switch.pause),
    "resume": _Subcommand(
        "allow actions again, and reset the circuit breaker (on the head)",
        policy_switch.prepare_resume,
        policy_switch.resume,
    ),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, subcommand in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=subcommand.help, description=subcommand.help)
        subcommand.prepare_parser(subparser)
        subparser.set_defaults(parser=subparser)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
