"""Facts from the kernel about this process and its relatives, the input of ``identity``. Linux's /proc."""

from __future__ import annotations

import os
import socket
import sys
from typing import NamedTuple, Optional

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat, parse_proc_stat


class OwnProcessFacts(NamedTuple):
    """This process's identity and origin. ``None``: not known, or not there."""

    hostname: str
    process: ProcessId
    group_leader: Optional[ProcessId] = None
    """The leader of the process group: the same for all that one launcher started without new sessions."""
    parent: Optional[ProcessId] = None
    """The parent, or the parent's parent for a process that ``multiprocessing`` started."""
    spawned_by: Optional[ProcessId] = None
    """The process that started this one through ``multiprocessing`` (``mp.spawn``, a DataLoader worker)."""
    script: Optional[str] = None
    """File name of the program, as in ``sys.argv[0]``, without its folder."""


def stat_of(pid: int) -> Optional[ProcStat]:
    """``/proc/PID/stat`` of the process that has ``pid`` now, or ``None`` if there is none."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return parse_proc_stat(file.read(4096))
    except OSError:
        return None


def process_id(pid: int) -> Optional[ProcessId]:
    """The process that has this pid now, or ``None`` if there is none."""
    stat = stat_of(pid)
    return None if stat is None else stat.process


def is_alive(process: ProcessId) -> bool:
    """Whether this very process (not a later one with its pid) runs in our pid namespace."""
    return process_id(process.pid) == process


def read_process_facts() -> OwnProcessFacts:
    pid = os.getpid()
    own = stat_of(pid)
    spawner = _multiprocessing_parent_pid()
    launched = stat_of(spawner) if spawner is not None else own
    return OwnProcessFacts(
        hostname=socket.gethostname(),
        process=own.process if own else ProcessId(pid, 0),
        group_leader=process_id(os.getpgrp()),
        parent=process_id(launched.parent_pid) if launched else None,
        spawned_by=process_id(spawner) if spawner is not None else None,
        script=os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) and sys.argv[0] not in ("", "-c") else None,
    )


def _multiprocessing_parent_pid() -> Optional[int]:
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    return parent.pid if parent is not None else None
