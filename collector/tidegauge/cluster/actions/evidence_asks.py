"""What people on the head want of ranks elsewhere: one small file for each wish, and one for its answer.

The HTTP API is read only, so a command that has a rank do something writes into the state directory of the service,
where only its user and root can. The coordinator looks every two seconds; files that nobody fetched are removed.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegauge.core.ids import JobKey
from tidegauge.core.wire import from_wire, to_wire
from tidegauge.files import replace_file

ASK_SUFFIX, ANSWER_SUFFIX = ".ask.json", ".answer.json"
FORGOTTEN_S = 600.0
"""A wish, or an answer, of this age is nobody's any more."""
MAX_WISHES = 100
MAX_FILE_BYTES = 64 << 10
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class EvidenceWish:
    """A request for one rank of a job."""

    wish_id: str
    job: JobKey
    rank: int
    request: Mapping[str, Any]
    """For the rank's socket (docs/probe.md): ``evidence`` or ``snapshot``."""


@dataclass(frozen=True)
class WishAnswer:
    """The rank's own answer, or why there is none, for people."""

    wish_id: str
    reply: Mapping[str, Any] | None = None
    error: str | None = None


class EvidenceAsks:
    """``folder`` is ``StateFiles.asks``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, job: JobKey, rank: int, request: Mapping[str, Any]) -> EvidenceWish:
        """Wish for something. Raises ``OSError``: then nobody will hear of it."""
        wish = EvidenceWish(secrets.token_hex(8), job, rank, request)
        self._write(wish.wish_id + ASK_SUFFIX, wish)
        return wish

    def fetch(self, wish: EvidenceWish) -> WishAnswer | None:
        """The answer, once; ``None``: none yet. Raises ``OSError``."""
        path = self._folder / (wish.wish_id + ANSWER_SUFFIX)
        try:
            answer = from_wire(WishAnswer, json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except ValueError as error:
            answer = WishAnswer(wish.wish_id, error=f"the service's answer cannot be read: {error}")
        path.unlink(missing_ok=True)
        return answer

    def withdraw(self, wish: EvidenceWish) -> None:
        """Nobody waits for it any more."""
        for suffix in (ASK_SUFFIX, ANSWER_SUFFIX):
            (self._folder / (wish.wish_id + suffix)).unlink(missing_ok=True)

    def take(self) -> tuple[EvidenceWish, ...]:
        """For the coordinator: the wishes that there are, each once; removes what was forgotten. Never raises."""
        try:
            names = sorted(entry.name for entry in self._folder.iterdir())
        except OSError:
            return ()
        found: list[EvidenceWish] = []
        for name in names[:MAX_WISHES]:
            path = self._folder / name
            try:
                is_old = time.time() - path.stat().st_mtime > FORGOTTEN_S
                content = b"" if is_old or not name.endswith(ASK_SUFFIX) else path.read_bytes()[:MAX_FILE_BYTES]
                if is_old or content:
                    path.unlink(missing_ok=True)
                if content:
                    found.append(from_wire(EvidenceWish, json.loads(content)))
            except (OSError, ValueError):
                continue
        return tuple(found)

    def answer(self, answer: WishAnswer) -> None:
        """For the coordinator. Raises ``OSError``."""
        self._write(answer.wish_id + ANSWER_SUFFIX, answer)

    def _write(self, name: str, value: object) -> None:
        """By descriptor of the folder: its owner may put a link there at any moment, and root would follow it."""
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        try:
            folder = os.open(self._folder, _FOLDER)
        except NotADirectoryError as error:
            raise OSError(f"{self._folder} is a link or not a folder: nothing was written") from error
        try:
            # Root writes for a service of somebody else, who must be able to read and remove it.
            owner = self._folder.parent.stat() if os.geteuid() == 0 else None
            to = None if owner is None else (owner.st_uid, owner.st_gid)
            if to is not None:
                os.fchown(folder, *to)
            replace_file(name, json.dumps(to_wire(value)).encode(), dir_fd=folder, owner=to)
        finally:
            os.close(folder)
