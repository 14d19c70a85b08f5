"""``tidegauge grafana``: dashboards and annotations, in a Grafana or as files."""

from __future__ import annotations

import argparse

from tidegauge.cli.arguments import Subcommand, add_subcommands
from tidegauge.cli.grafana import annotations as grafana_annotations
from tidegauge.cli.grafana import apply, export

HELP = "install dashboards and annotations in Grafana, or write dashboards and rules to files"


SUBCOMMANDS = {
    "apply": Subcommand("create or update folder, data source and dashboards in Grafana", apply.prepare, apply.run),
    "annotations": Subcommand(
        "add recorded incidents and actions to the dashboards as annotations",
        grafana_annotations.prepare,
        grafana_annotations.run,
    ),
    "export": Subcommand("write dashboards and Prometheus rules to files", export.prepare, export.run),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
