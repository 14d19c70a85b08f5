"""The service's files on its head, for commands that run there as the user of the service or as root."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import CommandError

if TYPE_CHECKING:
    from tidegauge.cluster.service_record import NodeSpec, StateFiles


def head_files(args: argparse.Namespace, *, otherwise: str) -> tuple[StateFiles, NodeSpec]:
    """The files and how the node was started. Raises ``CommandError`` on another node; ``otherwise`` says what to do
    where no service was ever started."""
    from tidegauge.cluster.service_record import RecordError, StateFiles, read_spec

    files = StateFiles(load_settings(args).state_dir.resolve())
    try:
        if not files.node.exists():
            raise CommandError(f"no service was ever started with the state directory {files.root}. {otherwise}")
        spec = read_spec(files.node)
    except (OSError, RecordError) as error:
        raise CommandError(
            f"cannot read the files of the service ({error}): run this as the user who runs the service"
        ) from error
    if not spec.is_head:
        raise CommandError(f"this node runs only an agent; run this on the head {spec.head_address}")
    return files, spec
