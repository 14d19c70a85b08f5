"""Evidence and profiles that the coordinator has not confirmed yet: in memory for reports, on disk for a restart.

``STATE_DIR/evidence`` and ``STATE_DIR/profiles`` hold a file for each waiting piece, and ``taken.json``: all windows
ever taken, so that a restarted agent does not take again those whose files still lie beside the rings. A journal of its
own (``attempts``) has the work in progress.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Generic, TypeVar

from tidegauge.core import wire
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.pieces import Piece
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.units import format_bytes
from tidegauge.files import clear_drafts, write_state

_log = logging.getLogger(__name__)

MAX_WAITING = 48
"""Pieces of one node: a coordinator that is away for hours gets the first ones, later windows stay beside their
rings."""
MAX_WAITING_PER_TENANT = 24
MAX_PIECES_PER_REPORT = 4
"""Each may have some 100 KB, and is repeated with every report until it is acknowledged."""
MAX_TAKEN = 4096
MAX_FILE_BYTES = 4 << 20
_TAKEN = "taken.json"


P = TypeVar("P", bound=Piece)


class WaitingPieces(Generic[P]):
    """The waiting pieces of one kind. Thread-safe. A write error is logged once, and costs a restart what was added."""

    def __init__(self, folder: Path, form: type[P], suffix: str) -> None:
        self._folder = folder
        self._form = form
        self._suffix = suffix
        self._lock = threading.Lock()
        self._waiting: dict[str, P] = {}
        """By the name of its file, oldest first."""
        self._taken: dict[str, None] = {}
        """Names, oldest first."""
        self._reported: set[str] = set()
        """Names of reported pieces: no other can have been acknowledged, whatever its id."""
        self._failing = False
        self._load()

    def has_room(self, tenant: Tenant) -> bool:
        """Whether another piece of this tenant may come."""
        with self._lock:
            of_tenant = sum(tenant_of(piece.job) == tenant for piece in self._waiting.values())
            return len(self._waiting) < MAX_WAITING and of_tenant < MAX_WAITING_PER_TENANT

    def was_taken(self, process: ProcessId, piece_id: str) -> bool:
        """Whether this very window was taken before."""
        with self._lock:
            return self._name(process, piece_id) in self._taken

    def add(self, piece: P) -> None:
        name = self._name(piece.process, piece.piece_id)
        with self._lock:
            self._waiting[name] = piece
            self._taken[name] = None
            while len(self._taken) > MAX_TAKEN:
                del self._taken[next(iter(self._taken))]
            try:
                write_state(self._folder / name, wire.to_json(piece))
                write_state(self._folder / _TAKEN, json.dumps(list(self._taken)).encode())
            except OSError as error:
                if not self._failing:
                    _log.warning("reports are kept in memory only: %s cannot be written: %s", self._folder, error)
                self._failing = True
            else:
                self._failing = False

    def pieces(self) -> tuple[P, ...]:
        """Pieces for the next report: the oldest first."""
        with self._lock:
            names = list(self._waiting)[:MAX_PIECES_PER_REPORT]
            self._reported.update(names)
            return tuple(self._waiting[name] for name in names)

    def snapshot_keys(self) -> frozenset[str]:
        """Keys of snapshots that the coordinator may not know yet."""
        with self._lock:
            return frozenset(one.key for piece in self._waiting.values() for one in piece.snapshots)

    def kept(self, piece_ids: Collection[str]) -> None:
        """Drop pieces that the coordinator has, or does not want."""
        with self._lock:
            for name in [name for name in self._reported if self._waiting[name].piece_id in piece_ids]:
                self._reported.discard(name)
                del self._waiting[name]
                try:
                    (self._folder / name).unlink(missing_ok=True)
                except OSError as error:
                    _log.info("%s cannot be removed and will be reported again: %s", self._folder / name, error)

    def _load(self) -> None:
        try:
            clear_drafts(self._folder)
            files = sorted(self._folder.glob(f"*{self._suffix}"), key=lambda path: path.stat().st_mtime)
        except OSError as error:
            _log.warning("the files of an earlier agent in %s cannot be read: %s", self._folder, error)
            return
        self._waiting = {path.name: one for path in files[:MAX_WAITING] if (one := self._read(path)) is not None}
        try:
            self._taken = dict.fromkeys(map(str, json.loads(_content(self._folder / _TAKEN))))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, RecursionError) as error:
            _log.warning("%s cannot be read, so windows may be processed twice: %s", self._folder / _TAKEN, error)
        self._taken.update(dict.fromkeys(self._waiting))

    def _read(self, path: Path) -> P | None:
        try:
            return wire.from_wire(self._form, json.loads(_content(path)))
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("%s is removed and not reported, because it cannot be read: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _name(self, process: ProcessId, piece_id: str) -> str:
        """Name of a window's file; a hash, for an id may be any text."""
        window = f"{process.pid}-{process.start_ticks} {piece_id}"
        return f"{hashlib.sha256(window.encode()).hexdigest()[:32]}{self._suffix}"


class WaitingEvidence(WaitingPieces[Evidence]):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Evidence, ".evidence")


class WaitingProfiles(WaitingPieces[RankProfile]):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, RankProfile, ".profile")


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"it is larger than {format_bytes(MAX_FILE_BYTES)}")
    return content
