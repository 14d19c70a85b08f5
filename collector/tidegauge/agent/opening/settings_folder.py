"""The folder of settings for later attempts of jobs: ``<run dir>/jobs``, in a folder where everybody may write.

It is opened without following links, must be the service's and writable for nobody else; a probe trusts no other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from pathlib import Path

from tidegauge.agent.opening.safe_files import DIRECTORY, UnsafeFileError, opened
from tidegauge.core.run_dir_names import DEFAULT_RUN_DIRS, SETTINGS_FOLDER

_log = logging.getLogger(__name__)

TRIES = 3
"""To make the folder, while somebody else may be making it too."""


def opened_settings_folder(run_dir: Path, *, owner: int, make: bool) -> int:
    """A descriptor of ``<run dir>/jobs``, if it is ``owner``'s; the caller closes it. Raises ``UnsafeFileError`` and
    ``OSError``, ``FileNotFoundError`` if it is not there.

    ``make`` creates it, ours; as root also where another user has put something in its place.
    """
    if make:
        _make_run_dir(run_dir)
    with opened(str(run_dir), DIRECTORY) as parent:
        _check_run_dir(os.fstat(parent), run_dir, owner)
        for _ in range(TRIES):
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(SETTINGS_FOLDER, 0o755, dir_fd=parent)
            found = os.stat(SETTINGS_FOLDER, dir_fd=parent, follow_symlinks=False).st_uid
            if found == owner:
                return _opened_of(owner, parent, run_dir)
            if not make or os.geteuid() != 0:
                break
            aside = f"{SETTINGS_FOLDER}.of-{found}-{secrets.token_hex(4)}"
            os.rename(SETTINGS_FOLDER, aside, src_dir_fd=parent, dst_dir_fd=parent)
            _log.warning("%s belonged to uid %d and was renamed to %s", run_dir / SETTINGS_FOLDER, found, aside)
    raise UnsafeFileError("owner", f"{run_dir / SETTINGS_FOLDER} belongs to uid {found}")


def _make_run_dir(run_dir: Path) -> None:
    try:
        run_dir.mkdir(mode=0o755)
    except FileExistsError:
        return
    if str(run_dir) in DEFAULT_RUN_DIRS:
        run_dir.chmod(0o1777)  # the jobs of all users put their rings here


def _check_run_dir(found: os.stat_result, run_dir: Path, owner: int) -> None:
    """Raises ``UnsafeFileError`` where others could replace our folder: writable for them, without the sticky bit."""
    others = found.st_mode & 0o022 or found.st_uid not in (0, owner)
    if others and not found.st_mode & stat.S_ISVTX:
        raise UnsafeFileError("sticky", f"other users can rename files in {run_dir}: it has no sticky bit")


def _opened_of(owner: int, parent: int, run_dir: Path) -> int:
    try:
        folder = os.open(SETTINGS_FOLDER, DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:  # a link answers so, too
        raise UnsafeFileError("not_directory", f"{run_dir / SETTINGS_FOLDER} is not a folder") from error
    try:
        found = os.fstat(folder)
        if found.st_uid != owner:  # exchanged since it was looked at
            raise UnsafeFileError("owner", f"{run_dir / SETTINGS_FOLDER} belongs to uid {found.st_uid}")
        if stat.S_IMODE(found.st_mode) != 0o755 and owner == os.geteuid():
            os.fchmod(folder, 0o755)
    except BaseException:
        os.close(folder)
        raise
    return folder
