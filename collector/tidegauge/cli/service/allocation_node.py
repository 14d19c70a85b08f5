"""A further node of the service of one allocation: ``python -m tidegauge.cli.service.allocation_node``.

``tidegauge run --with-service`` starts this task on its other nodes. The first line of stdin has the order to join, and
the end of stdin ends the node. So no process outlives the command, and the token is in no environment, on no command
line and on no shared file system.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tidegauge.cluster.ray_service.allocation import service_environ
from tidegauge.cluster.ray_service.node_command import address_towards
from tidegauge.cluster.ray_service.service_control import supervisor_command
from tidegauge.cluster.service_record import (
    NodeSpec,
    StateFiles,
    choose_engine_dir,
    prepare_state_dir,
    write_spec,
)
from tidegauge.files import replace_file

END_TIMEOUT_S = 20.0
"""Timeout of the supervisor's end, seconds; it ends its processes within 15 s."""


@dataclass(frozen=True)
class JoinOrder:
    """The order to join, as one line of JSON."""

    head_address: str
    token: str
    settings: Mapping[str, Any]
    """``Settings`` as JSON, without the node's own ``state_dir``."""
    logs: str
    """The folder for the logs of all nodes, usually on a shared file system."""
    own_run_dir: str | None
    """The run directory of this job alone, which is removed at the end."""


def main() -> int:
    """Join, wait for the end of stdin, clean up, and return the supervisor's exit code."""
    order = JoinOrder(**json.loads(sys.stdin.buffer.readline()))
    files = new_state_dir()
    try:
        supervisor = start_node(order, files)
        return _until_over(supervisor, sys.stdin.buffer)
    finally:
        keep_logs(files, Path(order.logs) / socket.gethostname())
        shutil.rmtree(files.root, ignore_errors=True)
        if order.own_run_dir:
            shutil.rmtree(order.own_run_dir, ignore_errors=True)


def new_state_dir() -> StateFiles:
    """Create a state directory on a local disk, for sockets and locks, with a short path. Raises ``OSError``."""
    return prepare_state_dir(Path(tempfile.mkdtemp(prefix="tidegauge-", dir="/tmp")))


def start_node(order: JoinOrder, files: StateFiles) -> subprocess.Popen[bytes]:
    replace_file(files.token, order.token.encode(), durable=True)
    write_spec(
        files,
        NodeSpec(
            state_dir=str(files.root),
            engine_dir=str(choose_engine_dir(files.root)),
            token_file=str(files.token),
            head_address=order.head_address,
            node_address=address_towards(order.head_address),
            is_head=False,
            settings={**order.settings, "state_dir": str(files.root)},
        ),
    )
    return start_supervisor(files, os.environ)


def start_supervisor(files: StateFiles, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the supervisor of ``node.json`` in its own session, because Ctrl-C is for the job."""
    with (files.logs / "supervisor.out").open("w") as output:
        return subprocess.Popen(
            supervisor_command(files), env=service_environ(environ), cwd=files.root, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip


def end_supervisor(supervisor: subprocess.Popen[bytes]) -> int:
    supervisor.terminate()
    try:
        return supervisor.wait(timeout=END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        return supervisor.wait()


def keep_logs(files: StateFiles, folder: Path) -> None:
    """Copy the service's logs to ``folder``, if possible."""
    with suppress(OSError, shutil.Error):
        shutil.copytree(files.logs, folder, dirs_exist_ok=True)


def _until_over(supervisor: subprocess.Popen[bytes], told: BinaryIO) -> int:
    """Wait for the end of ``told`` or a signal, such as Slurm's at the end of a job, then end the supervisor."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    with suppress(_Over):
        told.read()
    return end_supervisor(supervisor)


class _Over(Exception):  # noqa: N818 - not an error
    """A signal requests the end."""


def _leave(_number: int, _frame: object) -> None:
    raise _Over


if __name__ == "__main__":
    raise SystemExit(main())
