"""Fields of ``/proc/PID/status``, see proc_pid_status(5). Text in, numbers out; whoever calls reads the file.

The first line is what the process calls itself (``prctl(PR_SET_NAME)``): any 15 bytes, of which the kernel escapes line
feeds and backslashes alone.
"""

from __future__ import annotations

from typing import Optional


def status_numbers(text: str, field: str) -> tuple[int, ...]:
    """The numbers of a field such as ``Uid``; none if it is not there, cut off, or holds anything but numbers."""
    # Not splitlines(): a process that is called "\vUid:\t0\t0" would be believed.
    lines = text.split("\n")[:-1]
    line = next((line for line in lines if line.startswith(field + ":")), "")
    words = line.split()[1:]
    return tuple(map(int, words)) if all(word.isascii() and word.isdigit() for word in words) else ()


def effective_uid(text: str) -> Optional[int]:
    """The effective uid of the process; ``None`` if missing."""
    uids = status_numbers(text, "Uid")
    return uids[1] if len(uids) > 1 else None
