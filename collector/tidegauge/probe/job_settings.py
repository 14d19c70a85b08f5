"""Applies the service's settings for this attempt of the job: puts them into the environment before torch reads it.

Runs at every start of an interpreter of a job, so nothing is imported until there is a file. Nothing here raises.
"""

from __future__ import annotations

import os
import stat
import sys

from tidegauge.core.run_dir_names import SETTINGS_FOLDER, run_dirs

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing costs more to import than all of this
    from collections.abc import Mapping, MutableMapping

    from tidegauge.core.jobs.settings import JobSettings

TOLD_VARIABLE = "TIDEGAUGE_SETTINGS_TOLD"
"""The line that a process has printed, for those that it starts: torchrun prints it, its ranks do not again."""

_IDS = (
    ("TIDEGAUGE_JOB_ID", ("TIDEGAUGE_ATTEMPT", "SLURM_RESTART_COUNT")),
    ("SLURM_JOB_ID", ("SLURM_RESTART_COUNT",)),
)
"""Variables of a job's id and of its restarts. For an array task the id is the job's own number."""
_MAX_LINE_CHARS = 400
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _Refused(Exception):  # noqa: N818 - an answer, not an error
    """The file must not be used; the message gives the reason."""


def take_settings(environ: MutableMapping[str, str]) -> str | None:
    """Put the settings for this process's job into its ``environ``, if there are any and torch is not imported yet.

    Returns one line for the job: what it runs with, or why a file was ignored. ``None``: nothing to tell.
    """
    if "torch" in sys.modules:
        return None
    news = None
    for name, counts in _IDS:
        job_id = environ.get(name)
        for run_dir in run_dirs(environ) if job_id else ():
            path = f"{run_dir}/{SETTINGS_FOLDER}/{job_id}.json"
            if not os.path.lexists(path):
                continue
            try:
                return _taken(_read(run_dir, str(job_id)), _restarts(environ, counts), environ)
            except FileNotFoundError:
                continue  # removed just now by the service
            except Exception as error:
                news = _line(f"{path} is ignored: {_reason(error)}")
    return news


def tell(news: str, environ: MutableMapping[str, str]) -> None:
    """Print ``news`` once a node: in the first process with torch, unless that is a local rank above 0."""
    if environ.get(TOLD_VARIABLE) == news:
        return
    environ[TOLD_VARIABLE] = news
    from tidegauge.probe.faults import say
    from tidegauge.probe.identity import claimed_place

    place = claimed_place(environ)
    if place is None or place.local_rank == 0:
        say(news)


def _taken(settings: JobSettings, restarts: int, environ: MutableMapping[str, str]) -> str | None:
    from tidegauge.core.jobs.settings import changes

    if restarts < settings.from_restart:
        return None
    environ.update(changes(settings, environ))
    in_force = [f"{key}:{value}" for key, value in settings.alloc_conf.items()]
    in_force += [f"{name}={value}" for name, value in settings.environ.items() if environ.get(name) == value]
    if not in_force:
        return None
    return _line(f"attempt {restarts} of job {settings.job_id} runs with {', '.join(in_force)} (cluster policy)")


def _read(run_dir: str, job_id: str) -> JobSettings:
    """The settings for a job of ours. Raises ``_Refused``, ``ValueError`` and ``OSError``."""
    from tidegauge.core.jobs.settings import decode, settings_name
    from tidegauge.probe.run_files.own_user import outer_uid

    name = settings_name(job_id)
    if name is None:
        raise _Refused("not a valid job id")
    settings = decode(_content(f"{run_dir}/{SETTINGS_FOLDER}", name))
    if (settings.job_id, settings.uid) != (job_id, outer_uid(os.getuid())):
        raise _Refused(f"it is for job {settings.job_id} of uid {settings.uid}")
    return settings


def _content(folder: str, name: str) -> bytes:
    """Content of a file that only root or we can have written. In others' folders no file is opened."""
    from tidegauge.core.jobs.settings import MAX_FILE_BYTES

    folder_fd = os.open(folder, _FOLDER)
    try:
        _check(os.fstat(folder_fd), "its folder")
        fd = os.open(name, _FILE, dir_fd=folder_fd)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise _Refused("not a regular file with one hard link")
            _check(found, "it")
            return os.read(fd, MAX_FILE_BYTES + 1)
        finally:
            os.close(fd)
    finally:
        os.close(folder_fd)


def _check(found: os.stat_result, what: str) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise _Refused(f"{what} belongs to uid {found.st_uid}, not to root or you")
    if found.st_mode & 0o022:
        raise _Refused(f"{what} is writable by others")


def _restarts(environ: Mapping[str, str], names: tuple[str, ...]) -> int:
    given = next((environ[name] for name in names if name in environ), "0")
    return int(given) if given.isascii() and given.isdigit() and len(given) <= 9 else 0


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"it cannot be opened ({error.strerror})"
    return str(error) or type(error).__name__


def _line(text: str) -> str:
    from tidegauge.core.text import one_line  # rarely: every Python of a watched job loads this module at its start

    return one_line(text, _MAX_LINE_CHARS)
