"""``tidegauge policy`` checks, simulates and shows the policy, grades incidents, and pauses actions."""

from __future__ import annotations

import argparse

from tidegauge.cli.arguments import Subcommand, add_subcommands
from tidegauge.cli.config import add_settings_arguments
from tidegauge.cli.policy import files, grade, simulate, status, switch
from tidegauge.cli.service_api import add_api_arguments

HELP = "check, simulate and show the policy, grade incidents, pause and resume actions"

SUBCOMMANDS = {
    "status": Subcommand("show the state of policy and actions", add_api_arguments, status.status),
    "log": Subcommand("list decisions and their outcomes", status.prepare_log, status.log),
    "show": Subcommand("show the policy in force, or print the default policy", files.prepare_show, files.show),
    "check": Subcommand("check a policy file for errors and oddities", files.prepare_check, files.check),
    "simulate": Subcommand(
        "show what a policy file would have done about recent incidents", simulate.prepare, simulate.run
    ),
    "grade": Subcommand(
        "record whether an incident was a leak, or show the precision of notifications", grade.prepare, grade.run
    ),
    "schema": Subcommand("print the JSON Schema of policy files", files.prepare_schema, files.schema),
    "pause": Subcommand("stop all actions immediately (on the head)", switch.prepare_pause, switch.pause),
    "resume": Subcommand(
        "allow actions again and reset the circuit breakers (on the head)", add_settings_arguments, switch.resume
    ),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
