"""File names of rings, launch records and command sockets, shared by their writers and the agent (design 3.2).

Only names are made here; whoever calls creates or lists the folders.
"""

from __future__ import annotations

from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dir_names import DEFAULT_RUN_DIRS as DEFAULT_RUN_DIRS
from tidegauge.core.run_dir_names import run_dirs as run_dirs

RING_SUFFIX = ".ring"
SOCKET_SUFFIX = ".sock"
OOM_SUFFIX = ".oom.pickle"
EARLY_SUFFIX, LATE_SUFFIX = ".early.snap", ".late.snap"
ASKED_SUFFIX = ".asked.snap"
EVIDENCE_SUFFIX = ".evidence.json"
EVIDENCE_DRAFT_SUFFIX = ".evidence.new"
"""A file of evidence or of a recording that is being written."""
PROFILE_SNAPSHOT_SUFFIX, PROFILE_SUFFIX = ".profile.snap", ".profile.json"
LAUNCH_SUFFIX = ".job"
LAUNCH_SOCKET_SUFFIX = ".job.sock"
LAUNCH_DRAFT_SUFFIX = ".job.new"
"""A launch record that is being written: it gets its name when it is complete."""

EVIDENCE_SUFFIXES = (
    EARLY_SUFFIX, LATE_SUFFIX, ASKED_SUFFIX, EVIDENCE_SUFFIX, EVIDENCE_DRAFT_SUFFIX, PROFILE_SNAPSHOT_SUFFIX,
    PROFILE_SUFFIX,
)  # fmt: skip
_SUFFIXES = (
    RING_SUFFIX, SOCKET_SUFFIX, OOM_SUFFIX, LAUNCH_SUFFIX, LAUNCH_SOCKET_SUFFIX, LAUNCH_DRAFT_SUFFIX, *EVIDENCE_SUFFIXES
)  # fmt: skip


def ring_name(process: ProcessId) -> str:
    """File name of a process's ring, below ``<run dir>/<uid>/``."""
    return _name(process, RING_SUFFIX)


def socket_name(process: ProcessId) -> str:
    """File name of a process's command socket, beside its ring."""
    return _name(process, SOCKET_SUFFIX)


def oom_snapshot_name(process: ProcessId) -> str:
    """File name of what a process held when it last ran out of memory, beside its ring: a pickled torch snapshot."""
    return _name(process, OOM_SUFFIX)


def snapshot_name(process: ProcessId, suffix: str) -> str:
    """File name of a snapshot that the probe took (``core.snapshot_columns``, zlib): ``EARLY_SUFFIX``,
    ``LATE_SUFFIX``, ``ASKED_SUFFIX`` for one that somebody asked for, or ``PROFILE_SNAPSHOT_SUFFIX``."""
    return _name(process, suffix)


def evidence_name(process: ProcessId) -> str:
    """File name of what the probe found (``core.evidence.rank_evidence.RankEvidence`` as JSON): written last of all."""
    return _name(process, EVIDENCE_SUFFIX)


def evidence_draft_name(process: ProcessId) -> str:
    """File name of that, and of all others of these, while they are written."""
    return _name(process, EVIDENCE_DRAFT_SUFFIX)


def recording_name(process: ProcessId) -> str:
    """File name of a recording for a memory profile (``core.profile.rank_recording.RankRecording`` as JSON), written
    after its snapshot."""
    return _name(process, PROFILE_SUFFIX)


def names_beside(process: ProcessId) -> tuple[str, ...]:
    """File names of all that a process may leave beside its ring and its socket."""
    return tuple(_name(process, suffix) for suffix in (OOM_SUFFIX, *EVIDENCE_SUFFIXES))


def launch_name(process: ProcessId) -> str:
    """File name of the record that a ``tidegauge run`` keeps of its job (``core.jobs.launches``)."""
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
    return process_in(stem) if dot + suffix in _SUFFIXES else None


def process_in(stem: str) -> ProcessId | None:
    """The process of ``PID-TICKS``, or ``None`` for any other text."""
    pid, dash, ticks = stem.partition("-")
    if not dash or len(stem) > 40:
        return None
    if not (pid.isascii() and pid.isdigit() and ticks.isascii() and ticks.isdigit()):
        return None
    return ProcessId(int(pid), int(ticks))


def _name(process: ProcessId, suffix: str) -> str:
    return f"{process.pid}-{process.start_ticks}{suffix}"
