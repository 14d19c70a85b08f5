"""``tidegauge grafana``: dashboards and annotations, in a Grafana or as files."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

from tidegauge.cli import grafana_annotations, grafana_apply, grafana_export

HELP = "put dashboards and annotations into Grafana, or write dashboards and rules as files"


class _Subcommand(NamedTuple):
    help: str
    prepare_parser: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


SUBCOMMANDS = {
    "apply": _Subcommand(
        "bring folder, data source and dashboards of a Grafana up to date", grafana_apply.prepare, grafana_apply.run
    ),
    "annotations": _Subcommand(
        "draw recorded incidents and actions into the dashboards", grafana_annotations.prepare, grafana_annotations.run
    ),
    "export": _Subcommand(
        "write dashboards and Prometheus' rules as files", grafana_export.prepare, grafana_export.run
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
