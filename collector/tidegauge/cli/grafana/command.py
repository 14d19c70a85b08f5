"""``tidegauge grafana``: dashboards and annotations, in a Grafana or as files."""

from __future__ import annotations

import argparse

from tidegauge.cli.grafana import annotations as grafana_annotations
from tidegauge.cli.grafana import apply, export
from tidegauge.cli.subcommands import Subcommand, add_subcommands

HELP = "put dashboards and annotations into Grafana, or write dashboards and rules as files"


SUBCOMMANDS = {
    "apply": Subcommand("bring folder, data source and dashboards of a Grafana up to date", apply.prepare, apply.run),
    "annotations": Subcommand(
        "draw recorded incidents and actions into the dashboards", grafana_annotations.prepare, grafana_annotations.run
    ),
    "export": Subcommand("write dashboards and Prometheus' rules as files", export.prepare, export.run),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
