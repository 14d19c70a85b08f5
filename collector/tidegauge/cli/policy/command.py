"""``tidegauge policy``: what is to be done about incidents, how often they are right, and the switch that stops all."""

from __future__ import annotations

import argparse

from tidegauge.cli.policy import files, grade, simulate, status, switch
from tidegauge.cli.subcommands import Subcommand, add_subcommands

HELP = "check, simulate and show what is done about incidents; grade them; pause and resume all actions"


SUBCOMMANDS = {
    "status": Subcommand("how policy and actions stand", status.prepare_status, status.status),
    "log": Subcommand("every decision, and what came of it", status.prepare_log, status.log),
    "show": Subcommand("the policy in force, or the default to start from", files.prepare_show, files.show),
    "check": Subcommand("what is wrong or odd in a policy file", files.prepare_check, files.check),
    "simulate": Subcommand(
        "what a policy file would have done to the incidents of the last days",
        simulate.prepare,
        simulate.run,
    ),
    "grade": Subcommand(
        "say whether an incident was a leak; without one, how often this site's notifications are right",
        grade.prepare,
        grade.run,
    ),
    "schema": Subcommand("the JSON Schema of policy files", files.prepare_schema, files.schema),
    "pause": Subcommand("stop all actions, at once (on the head)", switch.prepare_pause, switch.pause),
    "resume": Subcommand(
        "allow actions again, and reset the circuit breaker (on the head)",
        switch.prepare_resume,
        switch.resume,
    ),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
