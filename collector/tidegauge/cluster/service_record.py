"""The files by which ``up``, ``down`` and ``status`` find each other: all below one state directory, mode 0700.

==================  ============================================================================================
``service.json``    what runs: written by the supervisor, read by the commands; goes with ``down``
``node.json``       how this node was asked to run: read by the actors on this node
``api.json``        where the coordinator's API is: written by the coordinator each time it starts
``api.sock``        where this node's own commands reach it, without TLS or names: root's and the owner's alone
``agent.json``      where this node's ``/metrics`` is: written by the node agent each time it starts
``token``           the cluster's shared secret, 0600; stays
``actions.json``    whether actions are paused (head only): written by ``policy pause`` and ``resume``; stays
``asks/``           what people want of ranks elsewhere (head only): by ``snapshot`` and ``top``; comes and goes
``settings.json``   settings for later attempts of jobs (head only): written by the coordinator; stays
``clock.json``      the time that passes whatever is done to the clock (head only): by the coordinator; stays
``lock``            held (flock) by the supervisor for as long as it lives
``logs/``           supervisor, engine start, coordinator and agent; stays
``engine/``         the engine's temporary files and sockets; goes with ``down``
``gcs/``            the engine's cluster state (head only): survives a crash, goes with ``down``
==================  ============================================================================================
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidegauge.core.ids import ProcessId
from tidegauge.files import replace_file
from tidegauge.osproc.processes import identity_of, is_alive
from tidegauge.steady_clock import read_boot_id

MAX_ENGINE_DIR_BYTES = 40
"""Ray puts sockets at ``<dir>/session_<33 characters>/sockets/plasma_store``, and unix(7) allows 107 bytes."""


class RecordError(Exception):
    """A file of the state directory cannot be read, or is not what this version writes; the message names it."""


@dataclass(frozen=True)
class StateFiles:
    """Names below one state directory."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "service.json"

    @property
    def node(self) -> Path:
        return self.root / "node.json"

    @property
    def api(self) -> Path:
        return self.root / "api.json"

    @property
    def api_socket(self) -> Path:
        return self.root / "api.sock"

    @property
    def agent(self) -> Path:
        return self.root / "agent.json"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def actions(self) -> Path:
        return self.root / "actions.json"

    @property
    def asks(self) -> Path:
        return self.root / "asks"

    @property
    def job_settings(self) -> Path:
        return self.root / "settings.json"

    @property
    def clock(self) -> Path:
        return self.root / "clock.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def gcs(self) -> Path:
        return self.root / "gcs"


@dataclass(frozen=True)
class NodeSpec:
    """How this node runs: the input of the supervisor and of the actors on this node."""

    state_dir: str
    engine_dir: str
    """Ray's ``--temp-dir``: short, below a directory that only the owner enters."""
    token_file: str
    head_address: str
    """``host:port`` of the engine's head."""
    node_address: str
    """This node's address in the engine."""
    is_head: bool
    settings: dict[str, Any]
    """``Settings`` as JSON."""


@dataclass(frozen=True)
class ServiceRecord:
    """What the supervisor says of itself; ``phase`` is starting, running, restarting, stopping or failed."""

    supervisor: ProcessId
    boot_id: str
    phase: str
    detail: str
    """What it is doing, or what went wrong, in one sentence."""
    spec: NodeSpec
    started_unix_s: float
    processes: tuple[tuple[ProcessId, str], ...] = ()
    """The engine's processes at the last look, with their names."""

    @property
    def alive(self) -> bool:
        """Whether the supervisor still runs."""
        return self.boot_id == read_boot_id() and is_alive(self.supervisor)


def prepare_state_dir(root: Path) -> StateFiles:
    """Make the state directory, closed to everybody else. Raises ``OSError``, also if it belongs to somebody else."""
    files = StateFiles(root)
    _own_folder(root)
    _own_folder(files.logs)
    return files


def _own_folder(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.stat().st_uid != os.geteuid():
        # Root could take it over all the same; but its owner may hold open what is in there, the token's file too.
        raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    path.chmod(0o700)


def make_token(files: StateFiles) -> Path:
    """The cluster's token, made at the first call; 256 bits, in a file that only the owner reads."""
    if not files.token.exists():
        replace_file(files.token, secrets.token_hex(32).encode(), durable=True)
    return files.token


def choose_engine_dir(root: Path) -> Path:
    """A folder for the engine, short enough for its sockets: in the state directory, or else a new one in /tmp."""
    wished = root / "engine"
    if len(os.fsencode(str(wished))) <= MAX_ENGINE_DIR_BYTES:
        return wished
    return Path(tempfile.mkdtemp(prefix="tidegauge-", dir="/tmp")) / "engine"


def take_lock(files: StateFiles) -> int | None:
    """A file descriptor that holds the service's lock until it is closed, or ``None`` if another process has it."""
    handle = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def write_record(files: StateFiles, record: ServiceRecord) -> None:
    replace_file(files.record, json.dumps(dataclasses.asdict(record), indent=1).encode(), durable=True)


def read_record(files: StateFiles) -> ServiceRecord | None:
    """The record, or ``None`` if no service was started here. Raises ``RecordError``."""
    raw = _read_json(files.record)
    if raw is None:
        return None
    try:
        return ServiceRecord(
            supervisor=ProcessId(*raw["supervisor"]),
            boot_id=str(raw["boot_id"]),
            phase=str(raw["phase"]),
            detail=str(raw["detail"]),
            spec=_spec(raw["spec"]),
            started_unix_s=float(raw["started_unix_s"]),
            processes=tuple((ProcessId(*process), str(name)) for process, name in raw["processes"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{files.record} is not from this version of Tidegauge: {error!r}") from error


def write_spec(files: StateFiles, spec: NodeSpec) -> None:
    replace_file(files.node, json.dumps(dataclasses.asdict(spec), indent=1).encode(), durable=True)


def read_spec(path: Path) -> NodeSpec:
    """Raises ``RecordError``."""
    raw = _read_json(path)
    try:
        return _spec(raw or {})
    except (TypeError, AttributeError) as error:
        raise RecordError(f"{path} is not from this version of Tidegauge: {error}") from error


def _spec(raw: dict[str, Any]) -> NodeSpec:
    """Keys that a newer version added are passed over: after a way back, this one must be able to end that service."""
    known = {field.name for field in dataclasses.fields(NodeSpec)}
    return NodeSpec(**{name: value for name, value in raw.items() if name in known})


def write_address(path: Path, address: str) -> None:
    """Announce ``address`` (a URL, ``host:port``) on behalf of this process."""
    process = identity_of(os.getpid())
    told = {"address": address, "process": process, "boot_id": read_boot_id()}
    replace_file(path, json.dumps(told).encode(), durable=True)


def read_address(path: Path) -> str | None:
    """The announced address, or ``None`` if nobody announced one or the process that did has ended."""
    try:
        raw = _read_json(path)
        if raw is None or raw["boot_id"] != read_boot_id() or not is_alive(ProcessId(*raw["process"])):
            return None
        return str(raw["address"])
    except (RecordError, KeyError, TypeError):
        return None


def local_api(files: StateFiles) -> str | None:
    """Where this node's own commands and parts reach the coordinator's API, in the form that ``client`` takes: a Unix
    socket, at which nobody has to say who they are. ``None`` where ``read_address`` of it is."""
    url = read_address(files.api)
    return f"unix://{quote(str(files.api_socket))}" if url is not None and files.api_socket.exists() else url


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path} is damaged: {error}") from error
    if not isinstance(raw, dict):
        raise RecordError(f"{path} is damaged: not a JSON object")
    return raw
