"""Where rings, launch records and command sockets live: one rule for those who write and the agent (design 3.2).

Only names are made here; whoever calls creates or lists the folders. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dir_names import DEFAULT_RUN_DIRS as DEFAULT_RUN_DIRS
from tidegauge.core.run_dir_names import run_dirs as run_dirs

RING_SUFFIX = ".ring"
SOCKET_SUFFIX = ".sock"
OOM_SUFFIX = ".oom.pickle"
LAUNCH_SUFFIX = ".job"
LAUNCH_SOCKET_SUFFIX = ".job.sock"
LAUNCH_DRAFT_SUFFIX = ".job.new"
"""A launch record that is being written: it gets its name when it is complete."""

_SUFFIXES = (RING_SUFFIX, SOCKET_SUFFIX, OOM_SUFFIX, LAUNCH_SUFFIX, LAUNCH_SOCKET_SUFFIX, LAUNCH_DRAFT_SUFFIX)


def ring_name(process: ProcessId) -> str:
    """File name of a process's ring, below ``<run dir>/<uid>/``."""
    return _name(process, RING_SUFFIX)


def socket_name(process: ProcessId) -> str:
    """File name of a process's command socket, beside its ring."""
    return _name(process, SOCKET_SUFFIX)


def oom_snapshot_name(process: ProcessId) -> str:
    """File name of what a process held when it last ran out of memory, beside its ring: a pickled torch snapshot."""
    return _name(process, OOM_SUFFIX)


def launch_name(process: ProcessId) -> str:
    """File name of the record that a ``tidegauge run`` keeps of its job (``core.launches``)."""
    return _name(process, LAUNCH_SUFFIX)


def launch_draft_name(process: ProcessId) -> str:
    """File name of that record while it is written."""
    return _name(process, LAUNCH_DRAFT_SUFFIX)


def launch_socket_name(process: ProcessId) -> str:
    """File name of the command socket of a ``tidegauge run``; a keeper that is a rank as well would have both."""
    return _name(process, LAUNCH_SOCKET_SUFFIX)


def process_of(name: str) -> ProcessId | None:
    """The process that one of these file names speaks of, or ``None`` for any other file."""
    stem, dot, suffix = name.partition(".")
    pid, dash, ticks = stem.partition("-")
    if dot + suffix not in _SUFFIXES or not dash:
        return None
    if not (pid.isascii() and pid.isdigit() and ticks.isascii() and ticks.isdigit()) or len(stem) > 40:
        return None
    return ProcessId(int(pid), int(ticks))


def _name(process: ProcessId, suffix: str) -> str:
    return f"{process.pid}-{process.start_ticks}{suffix}"
