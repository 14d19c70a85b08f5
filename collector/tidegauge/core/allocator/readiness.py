"""Whether this process runs the compiled model, and where compiled code is kept.

Compiling takes half a minute, so a process runs the plain functions until the compiled code is on disk, unless it says
beforehand that it would rather wait (``wait_for_compiling``). Asked before numba is imported, which takes a second.
"""

from __future__ import annotations

import hashlib
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Optional

SOURCES = Path(__file__).parent
_SIZES = SOURCES.with_name("allocator_sizes.py")
_DONE = "compiled"
"""This file is in the folder once all of it was compiled."""


class _State:
    waits = False


def is_installed() -> bool:
    """Whether numba can be imported."""
    return find_spec("numba") is not None


def is_ready() -> bool:
    """Whether the first call starts at once, compiled or, without numba, as plain Python."""
    return not is_installed() or (folder() / _DONE).exists()


def wait_for_compiling() -> None:
    """Compile in this process if that is necessary. In force for a model that is imported after this call."""
    _State.waits = True


def runs_compiled() -> bool:
    """Whether a model that is imported now is the compiled one."""
    return is_installed() and (_State.waits or is_ready())


def mark_ready() -> None:
    """Later processes run the compiled model. Without effect where no folder can be written."""
    with suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        (folder() / _DONE).touch()


def folder() -> Path:
    """The folder for compiled code: beside the source, or in the user's cache where that cannot be written."""
    return _parent() / f"tidegauge-allocator-{_digest()}"


def _parent() -> Path:
    beside = SOURCES / "__pycache__"
    if os.access(beside if beside.exists() else SOURCES, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegauge"


def _digest() -> str:
    """A digest of every line that is compiled, and of what compiles it: numba only notices changes in one file."""
    digest = hashlib.sha256(f"{sys.version} {_numba_version()} {_cpu()} {_sources()}".encode())
    return digest.hexdigest()[:16]


@cache
def _sources() -> str:
    """Read once: a process asks for the folder several times."""
    digest = hashlib.sha256()
    for path in (_SIZES, *sorted(SOURCES.glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _numba_version() -> Optional[str]:
    try:
        return version("numba")
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The processor's model: compiled code of one is not run on another, and home directories are shared."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        return next((line for line in lines if line.startswith("model name")), "")
    return ""
