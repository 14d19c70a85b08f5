"""Requests of people on the head to ranks on any node: one small file for each request, and one for its answer.

The HTTP API is read only, so a command writes its request into the state directory of the service, where only the
service's user and root can write. The coordinator looks every two seconds and removes files that nobody fetched.
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
from tidegauge.files import owner_for_root, replace_file

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
    """The answer of the rank, or the reason why there is none, for people."""

    wish_id: str
    reply: Mapping[str, Any] | None = None
    error: str | None = None


class EvidenceAsks:
    """The requests and answers in ``folder`` (``StateFiles.asks``)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, job: JobKey, rank: int, request: Mapping[str, Any]) -> EvidenceWish:
        """Write a request. Raises ``OSError``."""
        wish = EvidenceWish(secrets.token_hex(8), job, rank, request)
        self._write(wish.wish_id + ASK_SUFFIX, wish)
        return wish

    def fetch(self, wish: EvidenceWish) -> WishAnswer | None:
        """The answer, which is then removed; ``None``: no answer yet. Raises ``OSError``."""
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
        for suffix in (ASK_SUFFIX, ANSWER_SUFFIX):
            (self._folder / (wish.wish_id + suffix)).unlink(missing_ok=True)

    def take(self) -> tuple[EvidenceWish, ...]:
        """All requests, each once, for the coordinator; also removes files that are too old. Never raises."""
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
        """Write the answer, for the coordinator. Raises ``OSError``."""
        self._write(answer.wish_id + ANSWER_SUFFIX, answer)

    def _write(self, name: str, value: object) -> None:
        """Write relative to the open folder: its owner may replace it by a link at any time, and root would follow."""
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        try:
            folder = os.open(self._folder, _FOLDER)
        except NotADirectoryError as error:
            raise OSError(f"{self._folder} is a link or not a folder: nothing was written") from error
        try:
            owner = owner_for_root(self._folder.parent)
            if owner is not None:
                os.fchown(folder, *owner)
            replace_file(name, json.dumps(to_wire(value)).encode(), dir_fd=folder, owner=owner)
        finally:
            os.close(folder)
