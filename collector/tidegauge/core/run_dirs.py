"""Where rings and command sockets live: one rule for the probe that writes and the agent that looks (design 3.2).

Only names are made here; whoever calls creates or lists the folders. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegauge.core.ids import ProcessId

DEFAULT_RUN_DIRS = ("/run/tidegauge", "/dev/shm/tidegauge")
"""The site's folder (1777, made by the service) and the one that a job can always make for itself."""

RING_SUFFIX = ".ring"
SOCKET_SUFFIX = ".sock"


def run_dirs(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Run directories in order of preference: ``TIDEGAUGE_RUN_DIR`` alone if set, else the defaults.

    A probe takes the first that it can write to; an agent looks in all of them.
    """
    chosen = environ.get("TIDEGAUGE_RUN_DIR")
    return (chosen,) if chosen else DEFAULT_RUN_DIRS


def ring_name(process: ProcessId) -> str:
    """File name of a process's ring, below ``<run dir>/<uid>/``."""
    return f"{process.pid}-{process.start_ticks}{RING_SUFFIX}"


def socket_name(process: ProcessId) -> str:
    """File name of a process's command socket, beside its ring."""
    return f"{process.pid}-{process.start_ticks}{SOCKET_SUFFIX}"


def process_of(name: str) -> ProcessId | None:
    """The process that a ring's or socket's file name speaks of, or ``None`` for any other file."""
    stem, dot, suffix = name.rpartition(".")
    pid, dash, ticks = stem.partition("-")
    if dot + suffix not in (RING_SUFFIX, SOCKET_SUFFIX) or not dash:
        return None
    if not (pid.isascii() and pid.isdigit() and ticks.isascii() and ticks.isdigit()) or len(stem) > 40:
        return None
    return ProcessId(int(pid), int(ticks))
