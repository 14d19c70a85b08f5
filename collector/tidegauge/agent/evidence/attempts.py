"""Journal of evidence work: each file is recorded before work on it begins, so no file can crash the agent for ever.

The agent reads, unpacks and compares a rank's files. A file that triggers a bug here may crash the agent, or have it
killed for hanging, and is still there after the restart. So a file is recorded before its content is read and struck
out afterwards, whatever the result. A file that was never struck out is tried once more, because an agent also ends for
other reasons, and then skipped. A tenant with several skipped files gets no work for an hour: renaming the same file
costs nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.evidence.files import FoundFiles
from tidegauge.files import write_state

_log = logging.getLogger(__name__)

MAX_TRIES = 2
"""Tries of one file: the first may have met an agent that was about to end anyway."""
MAX_UNFINISHED = 3
"""Files of one tenant that were begun, and never finished, within ``HOLD_S``."""
HOLD_S = 3600.0
MAX_REMEMBERED = 256
MAX_FILE_BYTES = 1 << 20
_BEGUN = "begun.json"


class _Begun(NamedTuple):
    tenant: str
    tries: int
    at_unix_s: float


class EvidenceAttempts:
    """The journal. Belongs to the worker thread. On a disk that cannot be written to it does not outlive the agent."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _BEGUN
        self._begun: dict[str, _Begun] = _read(self._path)
        """Unfinished files by ``_name``, oldest first."""

    def begin(self, found: FoundFiles, *, now_unix_s: float) -> str | None:
        """Record that ``found`` is worked on; the reason why it must not be, or ``None``."""
        name, tenant = _name(found), str(found.at.tenant)
        before = self._begun.get(name)
        if before is not None and before.tries >= MAX_TRIES:
            return f"the agent ended {before.tries} times while working on it; not retried"
        recent = [one for one in self._begun.values() if one.tenant == tenant and _is_recent(one, now_unix_s)]
        if len(recent) >= MAX_UNFINISHED:
            return f"the agent ended while working on {len(recent)} files of {found.at.tenant} within the hour"
        self._begun.pop(name, None)
        tries = 1 if before is None else before.tries + 1
        self._begun[name] = _Begun(tenant, tries, now_unix_s)
        while len(self._begun) > MAX_REMEMBERED:
            del self._begun[next(iter(self._begun))]
        self._write()
        return None

    def end(self, found: FoundFiles) -> None:
        """Strike ``found`` out, whatever the result."""
        if self._begun.pop(_name(found), None) is not None:
            self._write()

    def _write(self) -> None:
        try:
            write_state(self._path, json.dumps(self._begun).encode())
        except OSError as error:
            _log.info("%s cannot be written, so files in work are not remembered: %s", self._path, error)


def _name(found: FoundFiles) -> str:
    """A name for one state of a file: written again, it gets another."""
    process, file = found.process, found.first
    return f"{process.pid}-{process.start_ticks} {file.name} {file.signature.mtime_ns} {file.signature.size}"


def _is_recent(begun: _Begun, now_unix_s: float) -> bool:
    """Whether it began within ``HOLD_S``; a clock that was set back makes no tenant wait longer."""
    return 0 <= now_unix_s - begun.at_unix_s < HOLD_S


def _read(path: Path) -> dict[str, _Begun]:
    try:
        raw = path.read_bytes()[:MAX_FILE_BYTES]
        rows: Mapping[str, tuple[str, int, float]] = json.loads(raw)
        return {str(name): _Begun(str(tenant), int(tries), float(at)) for name, (tenant, tries, at) in rows.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        _log.warning("%s cannot be read, so files that ended an agent before are retried: %s", path, error)
        return {}
