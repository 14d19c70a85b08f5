"""Reads processes from Linux's /proc, see proc(5)."""

from __future__ import annotations

import os
import pwd
import re
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.kubernetes.cgroup import container_of, pod_cgroup_of
from tidegauge.agent.opening.local import LOCAL, LocalOpener
from tidegauge.agent.opening.port import Opener
from tidegauge.agent.opening.safe_files import opened
from tidegauge.agent.ports import ProcessFacts, ProcessUsage
from tidegauge.core.host_memory import proportional_bytes
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.proc_stat import ProcStat, effective_uid, parse_proc_stat, status_numbers
from tidegauge.osproc.processes import MAX_GENERATIONS

NESTED_REFRESH_S = 5.0
"""Looking through all processes for one in a container costs about 30 us each: not more often than this."""

ASK_AGAIN_S = 60.0
"""Pause before a uid without a name is looked up again."""

DATA_WORKER = "pt_data_worker"
"""What ``torch/utils/data/_utils/worker.py`` calls itself (proc_pid_comm(5)) in releases that name their threads."""
MULTIPROCESSING = ("multiprocessing.spawn", "multiprocessing.forkserver")
"""In the command line of what Python's ``multiprocessing`` starts; a forked child has its parent's."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_SLURM_CGROUP = re.compile(
    r"/(?:slurm[^/]*(?:/uid_(\d+))?|[^/]*slurmstepd\.scope)/job_(\d{1,10})/step_([a-z0-9+]{1,32})(?:/|$)"
)
"""cgroup v1 ``/slurm_NODE/uid_1000/job_7/step_0``, v2 ``/system.slice/NODE_slurmstepd.scope/job_7/step_0/user``."""
_USERS_OWN = ("user.slice", "user@", "docker", "kubepods", "libpod", "lxc")
"""Below these a user or a container may make cgroups of any name."""


OUR_FILES_DIVISOR = 4
"""Share of this process's descriptors for them, as a divisor: rings need the others. Further processes are read by
``stat``."""
FORGET_S = 60.0
"""Time without a read after which a file is closed."""


class ResidentPages(NamedTuple):
    """Two figures of /proc/PID/statm, see proc_pid_statm(5)."""

    resident: int
    shared: int
    """Of those: pages of files and of shared memory."""


def parse_statm(text: bytes) -> ResidentPages | None:
    """``None`` for what is no statm, and for a process without memory."""
    try:
        _, resident, shared, *_ = map(int, text.split())
    except ValueError:
        return None
    return ResidentPages(resident, shared) if resident else None


class _Statm:
    __slots__ = ("fd", "read_s")

    def __init__(self, fd: int, read_s: float) -> None:
        self.fd = fd
        self.read_s = read_s


class OpenStatms:
    """Reads the open ``statm`` of the processes given to ``keep``, and of no others. For any thread.

    Opening, reading and parsing ``stat`` takes 13 us per rank and poll, reading an open ``statm`` one. An open file in
    /proc stays with the process that had the pid when it was opened, whoever has that pid later.
    """

    def __init__(self, root: str, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """``root``: where proc is mounted."""
        self._root = root
        self._monotonic_s = monotonic_s
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OUR_FILES_DIVISOR
        self._open: dict[ProcessId, _Statm] = {}
        self._sweep_s = monotonic_s() + FORGET_S
        self._lock = threading.Lock()
        """A descriptor must not be closed, and become another file, while somebody reads it."""

    def pages(self, process: ProcessId) -> ResidentPages | None:
        """``None`` where only ``stat`` can tell: it is not kept, has ended, or is about to.

        A process without memory of its own (a zombie, and one whose first thread has ended) has 0 there.
        """
        with self._lock:
            statm = self._open.get(process)
            if statm is None:
                return None
            statm.read_s = self._monotonic_s()
            try:
                pages = parse_statm(os.pread(statm.fd, 128, 0))
            except OSError:
                pages = None
            if pages is None:
                self._forget(process)
            return pages

    def keep(self, process: ProcessId, is_it: Callable[[], bool]) -> None:
        """Keep the ``statm`` of ``process`` open for ``pages``, if it can be. ``is_it`` checks that the pid is still
        this process's: called when the file is open, so that what was opened is its."""
        now_s = self._monotonic_s()
        with self._lock:
            if now_s >= self._sweep_s:
                self._sweep(now_s)
            if process in self._open or len(self._open) >= self._most:
                return
            with suppress(OSError):
                statm = os.open(f"{self._root}/{process.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
                self._open[process] = _Statm(statm, now_s)
                if not is_it():
                    self._forget(process)

    def _forget(self, process: ProcessId) -> None:
        os.close(self._open.pop(process).fd)

    def _sweep(self, now_s: float) -> None:
        self._sweep_s = now_s + FORGET_S
        for process in [process for process, statm in self._open.items() if now_s - statm.read_s > FORGET_S]:
            self._forget(process)

    def __del__(self) -> None:
        for process in list(self._open):
            self._forget(process)


class ProcFs:
    """The ``ProcSource`` of a real machine. ``root``: the mount point of proc. ``opener``: by default this process
    itself."""

    def __init__(
        self,
        root: Path = Path("/proc"),
        *,
        opener: Opener | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = str(root)
        self._opener = opener or LocalOpener(root)
        self._monotonic_s = monotonic_s
        self._nested: dict[ProcessId, list[ProcessId]] = {}
        self._nested_at_s = float("-inf")
        self._user_names: dict[int, str] = {}
        self._ask_again_s: dict[int, float] = {}
        """When, on the monotonic clock, a uid without a name is looked up again."""
        self._statms = OpenStatms(self._root, monotonic_s=monotonic_s)

    def find(self, process: ProcessId, *, mount_namespaces: Collection[int] | None = None) -> ProcessFacts | None:
        facts = self._facts(process)
        if facts is not None and self._is_in(process.pid, mount_namespaces):
            return facts
        now_s = self._monotonic_s()
        if now_s - self._nested_at_s >= NESTED_REFRESH_S:
            self._nested, self._nested_at_s = {}, now_s
            for inner, outer in self._list_nested():
                self._nested.setdefault(inner, []).append(outer)
        # Two containers that started together have the same pids inside: where they live tells them apart.
        named_so = [outer for outer in self._nested.get(process, ()) if self._is_in(outer.pid, mount_namespaces)]
        return next((facts for outer in named_so if (facts := self._facts(outer)) is not None), None)

    def usage(self, process: ProcessId) -> ProcessUsage | None:
        pages = self._statms.pages(process)
        if pages is None:
            statm = self._read(process.pid, "statm") or ""
            stat = self.stat(process.pid)
            if stat is None or stat.ended or stat.process != process:
                return None
            self._statms.keep(process, lambda: self.process_at(process.pid) == process)
            pages = parse_statm(statm.encode())
            if pages is None:
                return ProcessUsage(rss_bytes=stat.rss_pages * _PAGE_BYTES)
        return ProcessUsage(pages.resident * _PAGE_BYTES, pages.shared * _PAGE_BYTES)

    def pids(self) -> Sequence[int]:
        return [int(name) for name in os.listdir(self._root) if name.isdigit()]

    def proportional_bytes(self, process: ProcessId) -> int | None:
        try:
            rollup = self._opener.smaps_rollup(process.pid)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        return None if self.process_at(process.pid) != process else proportional_bytes(rollup)

    def cgroup(self, process: ProcessId) -> str:
        cgroup = self._read(process.pid, "cgroup")
        return "" if cgroup is None or self.process_at(process.pid) != process else cgroup

    def ancestors(self, process: ProcessId) -> tuple[ProcessId, ...]:
        found: list[ProcessId] = []
        stat = self.stat(process.pid)
        if stat is None or stat.process != process:
            return ()
        while stat is not None and len(found) < MAX_GENERATIONS:
            stat = self.stat(stat.parent_pid) if stat.parent_pid > 0 else None
            if stat is not None:
                found.append(stat.process)
        return tuple(found)

    def process_at(self, pid: int) -> ProcessId | None:
        stat = self.stat(pid)
        return None if stat is None or stat.ended else stat.process

    def is_gone(self, pid: int) -> bool:
        stat = self.stat(pid)
        if stat is not None:
            return stat.ended
        try:  # proc may be mounted with hidepid, which the signal 0 does not go by
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def looks_like_data_worker(self, process: ProcessId) -> bool:
        stat = self.stat(process.pid)
        if stat is None or stat.process != process:
            return False
        if (self._read(process.pid, "comm") or "").strip() == DATA_WORKER:
            return True
        command = self._read(process.pid, "cmdline") or ""
        return any(module in command for module in MULTIPROCESSING)

    def user_name(self, uid: int) -> str:
        if uid not in self._user_names and time.monotonic() >= self._ask_again_s.get(uid, 0.0):
            try:
                self._user_names[uid] = pwd.getpwuid(uid).pw_name
            except (KeyError, OverflowError):
                # Perhaps the directory service is only away for a moment.
                self._ask_again_s[uid] = time.monotonic() + ASK_AGAIN_S
        return self._user_names.get(uid, str(uid))

    def _is_in(self, pid: int, mount_namespaces: Collection[int] | None) -> bool:
        if mount_namespaces is None:
            return True
        try:
            return self._opener.mount_namespace(pid) in mount_namespaces
        except (FileNotFoundError, ProcessLookupError):
            return False

    def _facts(self, process: ProcessId) -> ProcessFacts | None:
        """The start time is read last: what was read before it belonged to the same process."""
        status = self._read(process.pid, "status")
        cgroup = self._read(process.pid, "cgroup") or ""
        stat = self.stat(process.pid)
        if status is None or stat is None or stat.ended or stat.process != process:
            return None
        uid = effective_uid(status)
        if uid is None:
            return None
        return facts_of(process, uid, cgroup, opener=self._opener)

    def _list_nested(self) -> Iterator[tuple[ProcessId, ProcessId]]:
        """``(as it knows itself, as we see it)`` for every process in a pid namespace below ours."""
        for name in os.listdir(self._root):
            if not name.isdigit():
                continue
            with suppress(PermissionError):  # proc mounted with hidepid
                pids = status_numbers(self._read(int(name), "status") or "", "NSpid")
                stat = self.stat(int(name)) if len(pids) > 1 else None
                if stat is not None:
                    yield ProcessId(pids[-1], stat.process.start_ticks), stat.process

    def stat(self, pid: int) -> ProcStat | None:
        return parse_proc_stat(self._read(pid, "stat") or "")

    def _read(self, pid: int, name: str) -> str | None:
        """A file of a process, ``None`` if it is gone. Other failures are not the end of a process, and raise."""
        try:
            with opened(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC) as fd:
                return os.read(fd, 1 << 16).decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):  # the latter if it ended between the two calls
            return None


def facts_of(process: ProcessId, uid: int, cgroup: str, *, opener: Opener = LOCAL) -> ProcessFacts:
    """Facts about a process of ``uid`` with this ``/proc/PID/cgroup``."""
    slurm, pod = slurm_place_of(cgroup, uid=uid), pod_cgroup_of(cgroup)
    container = container_of(cgroup) if slurm is None and pod is None else None
    owner = opener.owner_of_user_namespace(process.pid) or None  # root's: an engine that maps uids for everybody
    return ProcessFacts(process, uid, slurm, pod, container, owner)


def slurm_place_of(cgroup: str, *, uid: int) -> SlurmPlace | None:
    """The job and step for which slurmstepd made the cgroups in ``/proc/PID/cgroup``, or ``None``.

    Only cgroups that root made count; a ``uid_N`` in the path must be the process's own. Slurm >= 26.05 writes a
    SLUID in place of ``job_N`` unless told otherwise: such a process has no place here, slurmd itself knows it.
    """
    for line in cgroup.split("\n"):  # not splitlines(): a name may hold any other separator, but no line feed
        path = line.split(":", 2)[-1]
        if any(own in path for own in _USERS_OWN):
            continue
        match = _SLURM_CGROUP.search(path)
        if match is not None and match[1] in (None, str(uid)):
            return SlurmPlace(JobId(match[2]), match[3])
    return None


def in_initial_pid_namespace(root: Path = Path("/proc")) -> bool:
    """Whether pids here are the host's, as NVML tells them. The number is the kernel's PROC_PID_INIT_INO."""
    try:
        return os.readlink(root / "self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return False
