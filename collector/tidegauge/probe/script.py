"""What this process runs: its script, a hash of it and its arguments. For the probe's own thread, as files are read."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.core.text import one_line

MAX_SCRIPT_BYTES = 1 << 20
"""Of a script that is hashed; a larger one is hardly source."""
MAX_SCRIPT_CHARS = 256
"""Of its path: the end, where the name is."""
MAX_ARGUMENTS_CHARS = 200
_MAX_ARGUMENT_CHARS = 1000
_HIDDEN = "***"
_SECRET = re.compile(r"token|password|passwd|secret|key|credential|auth", re.IGNORECASE)
_USER_OF_URL = re.compile(r"://[^/@\s]*@")
_RAY_WORKER = "default_worker.py"
"""Ray's own, which a task or an actor of Ray's runs in: the same in every job."""


class ScriptFacts(NamedTuple):
    """``None``: not known, or not there."""

    script: Optional[str] = None
    """The path of ``__main__``, or ``-m module``."""
    script_sha256: Optional[str] = None
    arguments: Optional[str] = None


NOT_READ = ScriptFacts()


def read_script() -> ScriptFacts:
    """Of this process. Never raises for anything that a job may have done to its own modules."""
    main = sys.modules.get("__main__")
    path = _text(getattr(main, "__file__", None))
    if path is None or os.path.basename(path) == _RAY_WORKER:
        return ScriptFacts()
    module = _text(getattr(getattr(main, "__spec__", None), "name", None))
    name = f"-m {module.rpartition('.__main__')[0] or module}" if module is not None else path
    shown = name if len(name) <= MAX_SCRIPT_CHARS else f"...{name[3 - MAX_SCRIPT_CHARS :]}"
    argv: Any = getattr(sys, "argv", None)
    arguments = short_arguments(argv[1:]) if isinstance(argv, list) else None
    return ScriptFacts(one_line(shown), hash_of(path), arguments)


def hash_of(path: str) -> Optional[str]:
    """The SHA-256 of a regular file of at most ``MAX_SCRIPT_BYTES``, in hexadecimal digits."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None  # opening a device may do something, and opening a FIFO waits
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_SCRIPT_BYTES:
                return None
            content = b"".join(_pieces(descriptor))
        finally:
            os.close(descriptor)
    except (OSError, ValueError):  # it is gone, or its name is none
        return None
    import hashlib  # here: the probe starts in processes that never train

    return hashlib.sha256(content).hexdigest() if len(content) <= MAX_SCRIPT_BYTES else None


def short_arguments(arguments: Sequence[object]) -> Optional[str]:
    """One line of at most ``MAX_ARGUMENTS_CHARS``, as a shell would take it, without what may be a secret."""
    line = ""
    for argument in _without_secrets(arguments):
        line += (" " if line else "") + _quoted(argument)
        if len(line) > MAX_ARGUMENTS_CHARS:
            return one_line(line, MAX_ARGUMENTS_CHARS - 3) + "..."
    return one_line(line) or None


def _without_secrets(arguments: Sequence[object]) -> Iterator[str]:
    value_of_secret = False
    for argument in arguments:
        text = _USER_OF_URL.sub(f"://{_HIDDEN}@", argument[:_MAX_ARGUMENT_CHARS]) if isinstance(argument, str) else "?"
        name, equals, value = text.partition("=")
        if value_of_secret and not text.startswith("--"):
            value_of_secret = False
            yield _HIDDEN
        elif equals:
            value_of_secret = False
            yield f"{name}={_HIDDEN}" if _SECRET.search(name) or _tells_secret(value) else text
        elif text.startswith("-"):
            value_of_secret = _SECRET.search(text) is not None
            yield text
        else:
            value_of_secret = False
            yield _HIDDEN if _tells_secret(text) else text


def _tells_secret(text: str) -> bool:
    """Whether a value names a secret and may go on with it: JSON, a header of HTTP, settings in one argument."""
    return _SECRET.search(text) is not None and any(mark in text for mark in ":={")


def _quoted(text: str) -> str:
    import shlex

    return text if _HIDDEN in text else shlex.quote(text)


def _pieces(descriptor: int) -> Iterator[bytes]:
    left = MAX_SCRIPT_BYTES + 1
    while left > 0:
        piece = os.read(descriptor, left)
        if not piece:
            return
        left -= len(piece)
        yield piece


def _text(value: object) -> Optional[str]:
    return value if isinstance(value, str) and value else None
