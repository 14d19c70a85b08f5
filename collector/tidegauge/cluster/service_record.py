"""The files that ``up``, ``down`` and ``status`` share: all below one state directory, mode 0700.

==================  ============================================================================================
``service.json``    the running service: written by the supervisor, read by the commands; goes with ``down``
``node.json``       the configuration of this node: read by the actors on this node
``api.json``        address of the coordinator's API: written by the coordinator each time it starts
``api.sock``        socket of the API for commands on this node, without TLS or names: for root and the owner
``agent.json``      address of this node's ``/metrics``: written by the node agent each time it starts
``agent/``          what a restarted node agent must know (``agent.agent_state``): written by the agent; stays
``agent.lock``      held (flock) by the node agent at work, which says in it who it is; stays
``agent.next``      held (flock) by an agent of the engine's while it asks for the other; stays
``token``           the cluster's shared secret, 0600; stays
``tls/``            this node's certificates for the engine, 0600: written by ``up`` with ``engine_tls``; stays
``actions.json``    whether actions are paused (head only): written by ``policy pause`` and ``resume``; stays
``asks/``           requests to ranks (head only): by ``snapshot`` and ``top``; come and go
``settings.json``   settings for later attempts of jobs (head only): written by the coordinator; stays
``notified.jsonl``  what was sent where (head only): written by the notifier; stays
``forgotten.json``  whose data is forgotten, without names (head only): written by ``forget``; stays
``pseudonym.key``   key of users' pseudonyms (head only), 0600; stays
``clock.json``      state of the steady clock (head only): written by the coordinator; stays
``lock``            held (flock) by the supervisor for as long as it lives
``logs/``           supervisor, engine start, coordinator and agent; stays
``engine/``         the engine's temporary files and sockets; goes with ``down``
``gcs/``            the engine's cluster state (head only): survives a crash, goes with ``down``
==================  ============================================================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tidegauge.core.ids import ProcessId
from tidegauge.files import replace_file
from tidegauge.osproc.processes import identity_of, is_alive
from tidegauge.steady_clock import read_boot_id

log = logging.getLogger(__name__)

ANNOUNCE_AGAIN_S = 1.0
MAX_ENGINE_DIR_BYTES = 40
"""Ray puts sockets at ``<dir>/session_<33 characters>/sockets/plasma_store``, and unix(7) allows 107 bytes."""


class RecordError(Exception):
    """A file of the state directory is unreadable, or not from this version; the message names it."""


class StateFiles:
    """The paths below one state directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.record = root / "service.json"
        self.node = root / "node.json"
        self.api = root / "api.json"
        self.api_socket = root / "api.sock"
        self.agent = root / "agent.json"
        self.agent_state = root / "agent"
        self.agent_place = root / "agent.lock"
        self.token = root / "token"
        self.actions = root / "actions.json"
        self.asks = root / "asks"
        self.job_settings = root / "settings.json"
        self.journal = root / "notified.jsonl"
        self.efficiency_mails = root / "efficiency_mails.jsonl"
        self.forgotten = root / "forgotten.json"
        self.pseudonym_key = root / "pseudonym.key"
        self.clock = root / "clock.json"
        self.lock = root / "lock"
        self.logs = root / "logs"
        self.gcs = root / "gcs"


@dataclass(frozen=True)
class NodeSpec:
    """The configuration of this node: the input of the supervisor and of the actors on this node."""

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
    """The supervisor's own status; ``phase`` is starting, running, restarting, stopping or failed."""

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
        return self.boot_id == read_boot_id() and is_alive(self.supervisor)


def prepare_state_dir(root: Path) -> StateFiles:
    """Create the state directory, closed to other users. Raises ``OSError``, also if another user owns it."""
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
    """The cluster's token, created by the first call: 256 bits, in a file that only the owner reads."""
    if not files.token.exists():
        replace_file(files.token, secrets.token_hex(32).encode(), durable=True)
    return files.token


def choose_engine_dir(root: Path) -> Path:
    """A folder for the engine, with a path short enough for its sockets: in the state directory, or new in /tmp."""
    wished = root / "engine"
    if len(os.fsencode(str(wished))) <= MAX_ENGINE_DIR_BYTES:
        return wished
    return Path(tempfile.mkdtemp(prefix="tidegauge-", dir="/tmp")) / "engine"


def remove_traces(files: StateFiles, spec: NodeSpec, *, keep_cluster_state: bool = False) -> None:
    """Remove the files of a service that has ended, except its record. Token and logs stay."""
    _remove_engine_dir(spec)
    if not keep_cluster_state:
        shutil.rmtree(files.gcs, ignore_errors=True)
    for path in (files.api, files.api_socket, files.agent):
        path.unlink(missing_ok=True)


def _remove_engine_dir(spec: NodeSpec) -> None:
    """Also removes the folder around it that ``choose_engine_dir`` made in /tmp."""
    path = Path(spec.engine_dir)
    shutil.rmtree(path, ignore_errors=True)
    if path.parent != Path(spec.state_dir) and path.parent.name.startswith("tidegauge-"):
        with contextlib.suppress(OSError):
            path.parent.rmdir()


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
    """Keys that a newer version added are ignored: after a downgrade, this version must be able to end that service."""
    known = {field.name for field in dataclasses.fields(NodeSpec)}
    return NodeSpec(**{name: value for name, value in raw.items() if name in known})


def write_address(path: Path, address: str) -> None:
    """Announce ``address`` (a URL, ``host:port``) of this process."""
    process = identity_of(os.getpid())
    told = {"address": address, "process": process, "boot_id": read_boot_id()}
    replace_file(path, json.dumps(told).encode(), durable=True)


def announce(path: Path, address: str) -> None:
    """``write_address``, now or, on a full disk, in the background as soon as it succeeds.

    Never raises: Ray does not restart an actor whose ``__init__`` failed.
    """
    try:
        write_address(path, address)
    except OSError as error:
        log.warning("%s cannot be announced in %s yet: %s", address, path, error.strerror or error)
        threading.Thread(
            target=_announce_later, args=(path, address), name="tidegauge-announce", daemon=True
        ).start()  # fmt: skip


def _announce_later(path: Path, address: str) -> None:
    is_announced = False
    while not is_announced:
        time.sleep(ANNOUNCE_AGAIN_S)
        with contextlib.suppress(OSError):
            write_address(path, address)
            is_announced = True
    log.info("%s is now announced in %s", address, path)


def read_address(path: Path) -> str | None:
    """The announced address, or ``None`` if there is none or the process that announced it has ended."""
    raw = _announced(path)
    return None if raw is None else str(raw["address"])


def announced_by(path: Path) -> ProcessId | None:
    """The living process that announced an address; ``None`` where ``read_address`` is."""
    raw = _announced(path)
    return None if raw is None else ProcessId(*raw["process"])


def _announced(path: Path) -> dict[str, Any] | None:
    try:
        raw = _read_json(path)
        if raw is None or raw["boot_id"] != read_boot_id() or not is_alive(ProcessId(*raw["process"])):
            return None
        return {"address": raw["address"], "process": raw["process"]}
    except (RecordError, KeyError, TypeError):
        return None


def local_api(files: StateFiles) -> str | None:
    """The coordinator's API for commands and parts on this node, as a URL for ``client``: a Unix socket, which needs no
    token. ``None`` where ``read_address`` is."""
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
