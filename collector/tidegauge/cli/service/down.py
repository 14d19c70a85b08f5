"""``tidegauge down`` stops the service on this node."""

from __future__ import annotations

import argparse

from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import FINE, CommandError
from tidegauge.cli.output import progress

HELP = "stop the service on this node; jobs keep running"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from tidegauge.cluster.ray_service import service_control
    from tidegauge.cluster.service_record import StateFiles

    files = StateFiles(load_settings(args).state_dir.resolve())
    try:
        with progress("down") as say:
            ended = service_control.end(files, say)
    except service_control.ServiceError as error:
        raise CommandError(str(error)) from error
    print("down" if ended else f"nothing to stop: no service was started with state directory {files.root}")
    return FINE
