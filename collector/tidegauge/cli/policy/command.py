"""``tidegauge policy``: what is to be done about incidents, how often they are right, and the switch that stops all."""

from __future__ import annotations

import argparse

from tidegauge.cli.policy import files as policy_files
from tidegauge.cli.policy import grade as policy_grade
from tidegauge.cli.policy import simulate as policy_simulate
from tidegauge.cli.policy import status as policy_status
from tidegauge.cli.policy import switch as policy_switch
from tidegauge.cli.subcommands import Subcommand, add_subcommands

HELP = "check, simulate and show what is done about incidents; grade them; pause and resume all actions"


SUBCOMMANDS = {
    "status": Subcommand("how policy and actions stand", policy_status.prepare_status, policy_status.status),
    "log": Subcommand("every decision, and what came of it", policy_status.prepare_log, policy_status.log),
    "show": Subcommand(
        "the policy in force, or the default to start from", policy_files.prepare_show, policy_files.show
    ),
    "check": Subcommand("what is wrong or odd in a policy file", policy_files.prepare_check, policy_files.check),
    "simulate": Subcommand(
        "what a policy file would have done to the incidents of the last days",
        policy_simulate.prepare,
        policy_simulate.run,
    ),
    "grade": Subcommand(
        "say whether an incident was a leak; without one, how often this site's notifications are right",
        policy_grade.prepare,
        policy_grade.run,
    ),
    "schema": Subcommand("the JSON Schema of policy files", policy_files.prepare_schema, policy_files.schema),
    "pause": Subcommand("stop all actions, at once (on the head)", policy_switch.prepare_pause, policy_switch.pause),
    "resume": Subcommand(
        "allow actions again, and reset the circuit breaker (on the head)",
        policy_switch.prepare_resume,
        policy_switch.resume,
    ),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
