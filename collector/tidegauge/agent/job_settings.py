"""Settings for later attempts of jobs on this node: writes ``<run dir>/jobs/<job id>.json`` as the coordinator asks.

Everybody may write in a run directory, so the folder is opened without following links, must be ours and writable for
nobody else; a probe trusts no other. Its content is read each time, never cached: somebody may clear ``/run``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.run_dirs.folders import DIRECTORY, UnsafeFileError, closing_fd, watched_run_dirs
from tidegauge.agent.run_dirs.safe_files import Signature, open_checked, opened
from tidegauge.core.jobs.settings import MAX_FILE_BYTES, JobSettings, decode, digest, encode, settings_name
from tidegauge.core.run_dir_names import DEFAULT_RUN_DIRS, SETTINGS_FOLDER
from tidegauge.files import replace_file
from tidegauge.settings import Settings

_log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""How often files are read although their folder is unchanged: its state does not show that a file was written to."""
MAX_FILES = 20_000
"""Names in the folder that are looked at: twice what a coordinator keeps."""
TRIES = 3
"""To make the folder, while somebody else may be making it too."""


class _Looked(NamedTuple):
    """A folder's content and state when it was last read."""

    folder: Signature
    at_s: float
    digest: str


class JobSettingsFiles:
    """One agent's settings files. For one thread. ``run_dirs``: in order of preference; the first usable one counts."""

    def __init__(self, run_dirs: Sequence[Path], *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._run_dirs = tuple(run_dirs)
        self._monotonic_s = monotonic_s
        self._looked: _Looked | None = None
        self._problem: str | None = None

    def digest(self) -> str | None:
        """``core.jobs.settings.digest`` of these files; ``None`` while they cannot be written or read. Cheap when
        nothing has changed."""
        if self._problem is not None:
            return None
        try:
            with self._folder(make=False) as folder:
                return digest(()) if folder is None else self._digest_of(folder)
        except (OSError, UnsafeFileError) as error:
            self._say(error)
            return None

    def write(self, wanted: Collection[JobSettings]) -> None:
        """Make these the only files. Never raises: an error is logged once, and shows in ``digest``."""
        try:
            with self._folder(make=bool(wanted)) as folder:
                if folder is not None and self._digest_of(folder) != digest(wanted):
                    self._looked = None
                    _bring_up_to_date(folder, {_name(settings): encode(settings) for settings in wanted})
        except (OSError, UnsafeFileError, ValueError) as error:
            self._say(error)
        else:
            if self._problem is not None:
                _log.info("settings of jobs can be written again")
            self._problem = None

    def _digest_of(self, folder: int) -> str:
        now_s, signature, looked = self._monotonic_s(), Signature.of(os.fstat(folder)), self._looked
        if looked is None or looked.folder != signature or now_s - looked.at_s >= LOOK_AGAIN_S:
            there = filter(None, (_decoded(name, content) for name, content in _contents(folder).items()))
            looked = self._looked = _Looked(signature, now_s, digest(there))
        return looked.digest

    @contextlib.contextmanager
    def _folder(self, *, make: bool) -> Iterator[int | None]:
        """A descriptor of the folder; ``None`` if it is in no run directory and not to be made. Raises ``OSError`` and
        ``UnsafeFileError`` if there is none that can be used."""
        errors: list[OSError | UnsafeFileError] = []
        for run_dir in self._run_dirs:
            try:
                folder = _open(run_dir, make=make)
            except FileNotFoundError as error:
                if make:
                    errors.append(error)
                continue
            except (OSError, UnsafeFileError) as error:
                errors.append(error)
                continue
            with closing_fd(folder):
                yield folder
            return
        if make:
            raise errors[0]
        yield None

    def _say(self, error: Exception) -> None:
        problem = str(error)
        if problem != self._problem:
            _log.warning("later attempts of jobs on this node will start without their settings: %s", problem)
        self._problem = problem


def open_job_settings(settings: Settings, environ: Mapping[str, str] = os.environ) -> JobSettingsFiles:
    """This machine's settings files, in the run directories that its agent watches."""
    return JobSettingsFiles(watched_run_dirs(settings, environ))


def _open(run_dir: Path, *, make: bool) -> int:
    """A descriptor of the folder. Raises ``UnsafeFileError`` and ``OSError``, ``FileNotFoundError`` if it is not there.

    ``make`` creates it; as root also where another user has put something in its place.
    """
    if make:
        _make_run_dir(run_dir)
    with opened(str(run_dir), DIRECTORY) as parent:
        _check_run_dir(os.fstat(parent), run_dir)
        for _ in range(TRIES):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(SETTINGS_FOLDER, 0o755, dir_fd=parent)
            owner = os.stat(SETTINGS_FOLDER, dir_fd=parent, follow_symlinks=False).st_uid
            if owner == os.geteuid():
                return _open_ours(parent, run_dir)
            if not make or os.geteuid() != 0:
                break
            aside = f"{SETTINGS_FOLDER}.of-{owner}-{secrets.token_hex(4)}"
            os.rename(SETTINGS_FOLDER, aside, src_dir_fd=parent, dst_dir_fd=parent)
            _log.warning("%s belonged to uid %d and was renamed to %s", run_dir / SETTINGS_FOLDER, owner, aside)
    raise UnsafeFileError("owner", f"{run_dir / SETTINGS_FOLDER} belongs to uid {owner}")


def _make_run_dir(run_dir: Path) -> None:
    try:
        run_dir.mkdir(mode=0o755)
    except FileExistsError:
        return
    if str(run_dir) in DEFAULT_RUN_DIRS:
        run_dir.chmod(0o1777)  # the jobs of all users put their rings here


def _check_run_dir(found: os.stat_result, run_dir: Path) -> None:
    """Raises ``UnsafeFileError`` where others could replace our folder: writable for them, without the sticky bit."""
    others = found.st_mode & 0o022 or found.st_uid not in (0, os.geteuid())
    if others and not found.st_mode & stat.S_ISVTX:
        raise UnsafeFileError("sticky", f"other users can rename files in {run_dir}: it has no sticky bit")


def _open_ours(parent: int, run_dir: Path) -> int:
    try:
        folder = os.open(SETTINGS_FOLDER, DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:  # a link answers so, too
        raise UnsafeFileError("not_directory", f"{run_dir / SETTINGS_FOLDER} is not a folder") from error
    try:
        found = os.fstat(folder)
        if found.st_uid != os.geteuid():  # exchanged since it was looked at
            raise UnsafeFileError("owner", f"{run_dir / SETTINGS_FOLDER} belongs to uid {found.st_uid}")
        if stat.S_IMODE(found.st_mode) != 0o755:
            os.fchmod(folder, 0o755)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _contents(folder: int) -> dict[str, bytes]:
    """Contents of the folder's files by name; empty for one that a probe would not read."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, MAX_FILES)]
    return {name: _read(folder, name) for name in names}


def _read(folder: int, name: str) -> bytes:
    try:
        fd, signature = open_checked(folder, name, os.geteuid())
    except (OSError, UnsafeFileError):
        return b""
    with closing_fd(fd):
        return b"" if signature.mode & 0o022 else os.read(fd, MAX_FILE_BYTES + 1)


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


def _bring_up_to_date(folder: int, wanted: Mapping[str, bytes]) -> None:
    there = _contents(folder)
    for name, content in wanted.items():
        if there.get(name) != content:
            replace_file(name, content, mode=0o644, dir_fd=folder, durable=True)
    for name in there.keys() - wanted.keys():
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=folder)
