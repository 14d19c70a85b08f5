"""The switch for all actions is a file on the head: people set it, the loop reads it; it works while no service runs.

A file that cannot be read means paused. A person asks for a reset of the circuit breaker; it takes effect once the loop
has written down the time, so that a restart in between repeats nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from tidegauge.core.incidents.actions import Switches
from tidegauge.files import owner_for_root, replace_file

MAX_REASON_CHARS = 200
"""Characters: it stands in one line of every page that says that actions are paused."""


@dataclass(frozen=True)
class _Setting:
    """The content of the file. A missing file means: not paused, never reset."""

    paused: str | None = None
    """For people: by whom, since when, why."""
    reset_asked_by: str | None = None
    """A reset that the loop has not taken notice of yet."""
    reset_s: float | None = None
    """The latest reset that it did take notice of, on the policy clock."""


class ActionSwitch:
    """The switch in the file ``path`` (``StateFiles.actions``), whose folder exists."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pause(self, reason: str | None, by: str, now_unix_s: float) -> None:
        """Stop all actions until ``resume``. Raises ``OSError``: then nothing has changed."""
        text = f"by {by} since {_time(now_unix_s)}" + (
            f": {' '.join(reason.split())[:MAX_REASON_CHARS]}" if reason else ""
        )
        with self._changing():
            self._write(replace(self._read_or_new(), paused=text))

    def resume(self, by: str, now_unix_s: float) -> None:
        """Allow actions, as far as the policy does, and ask for the breaker to be reset. Raises ``OSError``."""
        with self._changing():
            self._write(replace(self._read_or_new(), paused=None, reset_asked_by=f"{by} at {_time(now_unix_s)}"))

    def paused(self) -> str | None:
        """Who paused all actions, since when and why; ``None`` if they are not, or if the file is unreadable."""
        return self._read_or_new().paused

    def read(self, *, now_s: float) -> Switches:
        """The present state, for the loop; ``now_s`` is the policy clock. Never raises.

        A new request for a reset is first written down with ``now_s``; until that succeeds it has no effect.
        """
        try:
            setting = self._read()
            if setting.reset_asked_by is not None:
                setting = self._take_notice(now_s)
        except (OSError, ValueError, RecursionError) as error:
            return Switches(paused=f"{self._path} cannot be used ({error}); `tidegauge policy resume` rewrites it")
        return Switches(paused=setting.paused, breaker_reset_s=setting.reset_s)

    def _take_notice(self, now_s: float) -> _Setting:
        """The file with the requested reset written into it. Raises ``OSError`` if it cannot be read."""
        try:
            with self._changing(wait=False):
                setting = self._read()  # somebody, or another thread, may have changed it before we had the lock
                if setting.reset_asked_by is None:
                    return setting
                noted = replace(setting, reset_asked_by=None, reset_s=now_s)
                self._write(noted)
                return noted
        except OSError:
            return self._read()

    def _read_or_new(self) -> _Setting:
        try:
            return self._read()
        except (OSError, ValueError, RecursionError):
            return _Setting()

    def _read(self) -> _Setting:
        try:
            raw = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return _Setting()
        return _checked(raw)

    def _write(self, setting: _Setting) -> None:
        text = json.dumps(asdict(setting), indent=1)
        replace_file(self._path, text.encode(), durable=True, owner=owner_for_root(self._path.parent))

    @contextlib.contextmanager
    def _changing(self, *, wait: bool = True) -> Iterator[None]:
        """Lock the file: the loop must not undo a pause that came at the same moment. Raises ``OSError``."""
        handle = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(handle)


def _checked(raw: Any) -> _Setting:
    """``raw`` as a setting. Raises ``ValueError`` for anything that ``_write`` does not write."""
    if not isinstance(raw, dict) or set(raw) != set(_Setting.__dataclass_fields__):
        raise ValueError("it is damaged or from another version of Tidegauge")
    texts, reset_s = (raw["paused"], raw["reset_asked_by"]), raw["reset_s"]
    if not all(text is None or isinstance(text, str) for text in texts):
        raise ValueError("it is damaged: a text is not a string")
    if reset_s is not None and not (isinstance(reset_s, float) and math.isfinite(reset_s)):
        raise ValueError("it is damaged: reset_s is not a time")
    return _Setting(*texts, reset_s)


def _time(unix_s: float) -> str:
    """In the head's own time zone, with its offset."""
    return datetime.fromtimestamp(unix_s).astimezone().isoformat(sep=" ", timespec="seconds")
