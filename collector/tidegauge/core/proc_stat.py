"""``/proc/PID/stat`` as a value, see proc(5). Text in, value out; whoever calls reads the file.

The probe imports this inside the training process.
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
    fields = rest.split()
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
