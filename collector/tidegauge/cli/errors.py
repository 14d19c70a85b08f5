"""Exit codes, and errors that a command prints: what happened, to what, and what to do next."""

from __future__ import annotations

import errno
import importlib
import sys
from types import ModuleType

from tidegauge.core.text import one_line

FINE, BAD_NEWS, USAGE, ENVIRONMENT = 0, 1, 2, 3
"""Exit codes of all commands: success; bad news, such as a leak; wrong usage; a problem of the environment."""
MAX_QUOTE_CHARS = 2_000
"""Maximum length, characters, of a message that quotes a file."""
EXTRAS_NEED_PYTHON = (3, 10)
"""The Python version of pyproject.toml's markers for extras; the base install and the probe run on 3.9."""

WRITE_REMEDIES = {
    errno.ENOSPC: "free space there, then run this again",
    errno.EDQUOT: "your quota there is used up: free space, then run this again",
    errno.EROFS: "make it writable, or write elsewhere",
    errno.EIO: "the disk fails: see the kernel's log (dmesg)",
}
"""What to do about a file that cannot be written, by the kernel's reason."""


class CommandError(Exception):
    """An error that ends a command: ``main`` prints the message to stderr and exits with ``exit_code``."""

    def __init__(self, message: str, *, exit_code: int = ENVIRONMENT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UsageError(CommandError):
    """A ``CommandError`` about wrong arguments, settings or files."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=USAGE)


def bad_file(path: object, error: ValueError) -> CommandError:
    """The error for an invalid file; its name and the quoted content are made printable."""
    said = str(error)
    text = said if said.startswith(f"{path}: ") else f"{path}: {said}"
    return UsageError(one_line(text, MAX_QUOTE_CHARS))


def cannot_write(what: object, error: OSError) -> str:
    """The message for an output that cannot be written: what, why, and what to do."""
    remedy = WRITE_REMEDIES.get(error.errno or 0)
    return f"cannot write {what}: {error.strerror or error}{'' if remedy is None else f'; {remedy}'}"


def need(module: str, *, extra: str, what: str) -> ModuleType:
    """Import ``module`` of an optional extra. Raises ``CommandError`` with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if sys.version_info < EXTRAS_NEED_PYTHON:
            # There, pip installs the extra without its packages, and the same message would follow.
            raise CommandError(
                f"{what} needs Python {'.'.join(map(str, EXTRAS_NEED_PYTHON))} or later, this is "
                f"{sys.version_info[0]}.{sys.version_info[1]}. "
                "Install it in an environment with a newer Python (jobs can keep theirs):\n"
                f"    pip install 'tidegauge[{extra}]'"
            ) from error
        raise CommandError(
            f"{what} needs the package {error.name!r}, which is not installed here. Install it with:\n"
            f"    pip install 'tidegauge[{extra}]'"
        ) from error
