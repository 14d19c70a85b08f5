"""Commands of commands: ``tidegauge policy pause``, ``tidegauge grafana apply``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidegauge.cli.arguments import as_description


class Subcommand(NamedTuple):
    """As a command module: ``run`` returns the exit code and raises ``CommandError``."""

    help: str
    prepare_parser: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_subcommands(parser: argparse.ArgumentParser, subcommands: Mapping[str, Subcommand]) -> None:
    """The one that is called is in ``args.what``."""
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, subcommand in subcommands.items():
        subparser = subparsers.add_parser(name, help=subcommand.help, description=as_description(subcommand.help))
        subcommand.prepare_parser(subparser)
        subparser.set_defaults(parser=subparser)
