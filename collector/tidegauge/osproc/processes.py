"""Processes as ``/proc`` shows them: finds descendants and members of a session; ends processes by identity, never by
name."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat, parse_proc_stat

PROC = Path("/proc")
MAX_STAT_BYTES = 4096
NICENESS = 15
"""Ray's own for its workers."""
MAX_GENERATIONS = 64
"""Parents of parents that are looked at; a chain that changes while it is read could have a loop."""


def stat_of(pid: int) -> ProcStat | None:
    """``None`` if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # in a third of the time of a Path's ``read_text``
            return parse_proc_stat(file.read(MAX_STAT_BYTES).decode(errors="replace"))
    except (FileNotFoundError, ProcessLookupError):
        return None


def identity_of(pid: int) -> ProcessId | None:
    stat = stat_of(pid)
    return None if stat is None else stat.process


def is_alive(process: ProcessId) -> bool:
    """Whether this very process still runs: neither a zombie nor another process with the same pid."""
    stat = stat_of(process.pid)
    return stat is not None and stat.process == process and not stat.ended


def all_processes() -> list[ProcStat]:
    """Every process that this one may see: on a ``/proc`` mounted with ``hidepid``, the user's own."""
    found: list[ProcStat] = []
    for entry in os.listdir(PROC):
        if entry.isdigit():
            with contextlib.suppress(PermissionError):
                stat = stat_of(int(entry))
                if stat is not None:
                    found.append(stat)
    return found


def descends(pid: int, ancestor_pid: int) -> bool:
    """Whether ``pid`` is ``ancestor_pid`` or a descendant of it, as far as ``/proc`` shows now."""
    for _ in range(MAX_GENERATIONS):
        if pid == ancestor_pid:
            return True
        stat = stat_of(pid) if pid > 1 else None
        if stat is None:
            return False
        pid = stat.parent_pid
    return False


def descendants(pid: int) -> list[ProcStat]:
    """Children of ``pid``, their children, and so on; zombies included."""
    children: dict[int, list[ProcStat]] = {}
    for stat in all_processes():
        children.setdefault(stat.parent_pid, []).append(stat)
    found: list[ProcStat] = []
    todo = [pid]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += [stat.process.pid for stat in mine]
    return found


def session_members(leader: ProcessId) -> list[ProcStat]:
    """Living processes of the session that ``leader`` opened, also after its end.

    The kernel does not reuse a pid while a session bears it. So if ``leader.pid`` is another process now, the session
    has no members left.
    """
    holder = stat_of(leader.pid)
    if holder is not None and holder.process != leader:
        return []
    return [
        stat
        for stat in all_processes()
        if stat.session_id == leader.pid and stat.process.start_ticks >= leader.start_ticks and not stat.ended
    ]


def end_processes(find: Callable[[], Iterable[ProcStat]], *, grace_s: float, deadline_s: float) -> list[ProcStat]:
    """Send SIGTERM to all processes that ``find`` gives, SIGKILL after ``grace_s``, until it gives none; new ones
    included.

    Returns the processes that are left after ``deadline_s`` (in uninterruptible sleep, or of another user).
    """
    begin_s = time.monotonic()
    asked: set[ProcessId] = set()
    while True:
        left = [stat for stat in find() if not stat.ended]
        waited_s = time.monotonic() - begin_s
        if not left or waited_s > deadline_s:
            return left
        for stat in left:
            if waited_s > grace_s:
                send_signal(stat.process, signal.SIGKILL)
            elif stat.process not in asked:
                asked.add(stat.process)
                send_signal(stat.process, signal.SIGTERM)
        time.sleep(0.02)


def send_signal(process: ProcessId, number: int) -> bool:
    """Signal this very process; ``False`` if it is gone or belongs to another user."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        # The handle is taken first: if the pid still has our start time now, the handle is the right process.
        if identity_of(process.pid) != process:
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def let_training_go_first() -> None:
    """From now on this process gets processor time after others (nice(2), which concerns one thread, so each of them);
    as it is where that is forbidden."""
    for task in os.listdir(PROC / "self" / "task"):
        with contextlib.suppress(OSError):  # a thread that has ended, or a sandbox
            os.setpriority(os.PRIO_PROCESS, int(task), NICENESS)
