"""Settings for later attempts of jobs on this node: writes ``<run dir>/jobs/<job id>.json`` as the coordinator asks.

The folder (``opening.settings_folder``) is read each time, never cached: somebody may clear ``/run``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.port import Opener
from tidegauge.agent.opening.remote import open_opener
from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError, closing_fd, open_checked
from tidegauge.agent.opening.settings_folder import opened_settings_folder
from tidegauge.agent.run_dirs.folders import watched_run_dirs
from tidegauge.core.jobs.settings import MAX_FILE_BYTES, JobSettings, decode, digest, encode, settings_name
from tidegauge.settings import Settings

_log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""How often files are read although their folder is unchanged: its state does not show that a file was written to."""
MAX_FILES = 20_000
"""Names in the folder that are looked at: twice what a coordinator keeps."""


class _Looked(NamedTuple):
    """A folder's content and state when it was last read."""

    folder: Signature
    at_s: float
    digest: str


class JobSettingsFiles:
    """One agent's settings files. For one thread. ``run_dirs``: in order of preference; the first usable one counts."""

    def __init__(
        self,
        run_dirs: Sequence[Path],
        *,
        opener: Opener = LOCAL,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dirs = tuple(run_dirs)
        self._opener = opener
        self._monotonic_s = monotonic_s
        self._looked: _Looked | None = None
        self._problem: str | None = None

    def digest(self) -> str | None:
        """``core.jobs.settings.digest`` of these files; ``None`` while they cannot be written or read. Cheap when
        nothing has changed."""
        if self._problem is not None:
            return None
        try:
            with self._folder(make=False) as there:
                return digest(()) if there is None else self._digest_of(there[1])
        except (OSError, UnsafeFileError) as error:
            self._say(error)
            return None

    def write(self, wanted: Collection[JobSettings]) -> None:
        """Make these the only files. Never raises: an error is logged once, and shows in ``digest``."""
        try:
            with self._folder(make=bool(wanted)) as there:
                if there is not None and self._digest_of(there[1]) != digest(wanted):
                    self._looked = None
                    self._bring_up_to_date(*there, {_name(settings): encode(settings) for settings in wanted})
        except (OSError, UnsafeFileError, ValueError) as error:
            self._say(error)
        else:
            if self._problem is not None:
                _log.info("settings of jobs can be written again")
            self._problem = None

    def _digest_of(self, folder: int) -> str:
        now_s, signature, looked = self._monotonic_s(), Signature.of(os.fstat(folder)), self._looked
        if looked is None or looked.folder != signature or now_s - looked.at_s >= LOOK_AGAIN_S:
            there = filter(None, (_decoded(name, content) for name, content in self._contents(folder).items()))
            looked = self._looked = _Looked(signature, now_s, digest(there))
        return looked.digest

    @contextlib.contextmanager
    def _folder(self, *, make: bool) -> Iterator[tuple[Path, int] | None]:
        """The run directory and a descriptor of the folder in it; ``None`` if it is in none and not to be made. Raises
        ``OSError`` and ``UnsafeFileError`` if there is none that can be used."""
        errors: list[OSError | UnsafeFileError] = []
        for run_dir in self._run_dirs:
            try:
                if make:
                    self._opener.make_settings_folder(run_dir)
                folder = opened_settings_folder(run_dir, owner=self._opener.settings_owner, make=False)
            except FileNotFoundError as error:
                if make:
                    errors.append(error)
                continue
            except (OSError, UnsafeFileError) as error:
                errors.append(error)
                continue
            with closing_fd(folder):
                yield run_dir, folder
            return
        if make:
            raise errors[0]
        yield None

    def _contents(self, folder: int) -> dict[str, bytes]:
        """Contents of the folder's files by name; empty for one that a probe would not read."""
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, MAX_FILES)]
        return {name: self._read(folder, name) for name in names}

    def _read(self, folder: int, name: str) -> bytes:
        try:
            fd, signature = open_checked(folder, name, self._opener.settings_owner)
        except (OSError, UnsafeFileError):
            return b""
        with closing_fd(fd):
            return b"" if signature.mode & 0o022 else os.read(fd, MAX_FILE_BYTES + 1)

    def _bring_up_to_date(self, run_dir: Path, folder: int, wanted: Mapping[str, bytes]) -> None:
        there = self._contents(folder)
        for name, content in wanted.items():
            if there.get(name) != content:
                self._opener.write_settings(run_dir, name, content)
        for name in there.keys() - wanted.keys():
            self._opener.delete_settings(run_dir, name)

    def _say(self, error: Exception) -> None:
        problem = str(error)
        if problem != self._problem:
            _log.warning("later attempts of jobs on this node will start without their settings: %s", problem)
        self._problem = problem


def open_job_settings(settings: Settings, environ: Mapping[str, str] = os.environ) -> JobSettingsFiles:
    """This machine's settings files, in the run directories that its agent watches."""
    return JobSettingsFiles(watched_run_dirs(settings, environ), opener=open_opener(settings.opener_socket))


def _decoded(name: str, content: bytes) -> JobSettings | None:
    try:
        settings = decode(content)
    except ValueError:
        return None
    return settings if settings_name(settings.job_id) == name else None


def _name(settings: JobSettings) -> str:
    name = settings_name(settings.job_id)
    if name is None:
        raise ValueError(f"{settings.job_id[:60]!r} is not a job id")
    return name
