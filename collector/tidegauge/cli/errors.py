"""Errors that a command prints for people: what happened, to what, and what to do next."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from tidegauge.core.text import one_line

FINE, BAD_NEWS, USAGE, ENVIRONMENT = 0, 1, 2, 3
"""Exit codes of every command: fine; the answer is bad news (a leak); wrong call; something outside is missing."""


MAX_QUOTE_CHARS = 2_000
"""Characters of a message that may quote a file."""
EXTRAS_NEED_PYTHON = (3, 10)
"""As pyproject.toml's markers say; the base install and the probe run on 3.9."""


class CommandError(Exception):
    """Ends a command. ``main`` prints the message to stderr, once, and exits with ``exit_code``."""

    def __init__(self, message: str, *, exit_code: int = ENVIRONMENT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def bad_file(path: object, error: ValueError) -> CommandError:
    """Ends a command over a file that nobody vouches for: its name and what of it the error quotes made printable."""
    said = str(error)
    text = said if said.startswith(f"{path}: ") else f"{path}: {said}"
    return CommandError(one_line(text, MAX_QUOTE_CHARS), exit_code=USAGE)


def need(module: str, *, extra: str, what: str) -> ModuleType:
    """Import ``module`` of an optional extra, or say what needs it and the exact command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if sys.version_info < EXTRAS_NEED_PYTHON:
            # There, pip would install the extra without a package in it, and the same message would come again.
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
