"""``/proc/PID/stat`` and ``/proc/PID/status`` as values, see proc(5). Text in, values out; the caller reads the files.

The first line of ``status`` is what the process calls itself (``prctl(PR_SET_NAME)``): any 15 bytes, of which the
kernel escapes line feeds and backslashes alone. The probe imports this inside the training process.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.ids import ProcessId

_FORKED = 0x40
"""``PF_FORKNOEXEC`` of the kernel's ``include/linux/sched.h``."""


class ProcStat(NamedTuple):
    """Fields of ``/proc/PID/stat``."""

    process: ProcessId
    name: str
    """``comm``: at most 15 characters, any of them."""
    state: str
    """One letter: R, S, D, Z (zombie), X (dead) …"""
    parent_pid: int
    session_id: int
    threads: int
    rss_pages: int
    forked: bool = False
    """It runs what its parent ran (``PF_FORKNOEXEC``): a fork, which shares its parent's memory until one of them
    writes."""

    @property
    def ended(self) -> bool:
        """A zombie has ended, only its parent has not looked yet; one whose other threads still run has not."""
        return self.state in "ZXx" and self.threads <= 1


def parse_proc_stat(text: str) -> Optional[ProcStat]:
    """The value of one line, or ``None`` if it is not one."""
    # The name stands in parentheses and may itself hold any of " ()": the last ")" ends it.
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split(None, 22)  # of some fifty
    try:
        return ProcStat(
            process=ProcessId(int(pid), int(fields[19])),
            name=name,
            state=fields[0],
            parent_pid=int(fields[1]),
            session_id=int(fields[3]),
            threads=int(fields[17]),
            rss_pages=int(fields[21]),
            forked=bool(int(fields[6]) & _FORKED),
        )
    except (ValueError, IndexError):
        return None


def status_numbers(text: str, field: str) -> tuple[int, ...]:
    """The numbers of a field of ``status`` such as ``Uid``; none if it is missing, cut off, or not numbers alone."""
    # Not splitlines(): a process that is called "\vUid:\t0\t0" would be believed.
    lines = text.split("\n")[:-1]
    line = next((line for line in lines if line.startswith(field + ":")), "")
    words = line.split()[1:]
    return tuple(map(int, words)) if all(word.isascii() and word.isdigit() for word in words) else ()


def effective_uid(text: str) -> Optional[int]:
    """The effective uid of the process; ``None`` if missing."""
    uids = status_numbers(text, "Uid")
    return uids[1] if len(uids) > 1 else None
