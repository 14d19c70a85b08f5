"""``python -m tidegauge.cli.service.allocation_node``: one more node of a service that a user started for an
allocation.

The task of the step that ``tidegauge run --with-service`` starts on its other nodes. Its first line of stdin says how
to join; the end of stdin says that all is over. So nothing of it outlives the command, and the token is in no
environment, on no command line and on no shared file system.
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

from tidegauge.cluster.engine.allocation import service_environ
from tidegauge.cluster.engine.node_command import address_towards
from tidegauge.cluster.engine.service_control import supervisor_command
from tidegauge.cluster.service_record import (
    NodeSpec,
    StateFiles,
    choose_engine_dir,
    prepare_state_dir,
    write_spec,
)
from tidegauge.files import replace_file

END_TIMEOUT_S = 20.0
"""The supervisor ends what it started within 15 s."""


@dataclass(frozen=True)
class JoinOrder:
    """What a node is told; one line of JSON."""

    head_address: str
    token: str
    settings: Mapping[str, Any]
    """``Settings`` as JSON; ``state_dir`` is the node's own."""
    logs: str
    """Folder, seen by all nodes if the user's files are, for what the service logged on each."""
    own_run_dir: str | None
    """A run directory that nobody else uses: removed at the end."""


def main() -> int:
    """Join, stay until stdin ends, leave nothing behind. The exit code is the supervisor's."""
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
    """Local to the host, as sockets and locks want it, and short enough for the engine's. Raises ``OSError``."""
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
    """The supervisor of ``node.json``, in a session of its own: Ctrl-C is for the job."""
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
    """Copy the service's logs to where the user finds them; without a word if that cannot be."""
    with suppress(OSError, shutil.Error):
        shutil.copytree(files.logs, folder, dirs_exist_ok=True)


def _until_over(supervisor: subprocess.Popen[bytes], told: BinaryIO) -> int:
    """Until ``told`` ends or a signal comes (Slurm's at the end of a job), then end the supervisor too."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    with suppress(_Over):
        told.read()
    return end_supervisor(supervisor)


class _Over(Exception):  # noqa: N818 - not an error
    """A signal asks for the end."""


def _leave(_number: int, _frame: object) -> None:
    raise _Over


if __name__ == "__main__":
    raise SystemExit(main())
