"""Container discovery: finds processes in other mount namespaces, which write their rings to a /dev/shm of their own.

/proc/PID/ns/mnt names each process's namespace; a living process of it is the way in (``ways_in``). Containers that
share a run directory, as those of a pod do, are recognised by its device and inode.
"""

from __future__ import annotations

import itertools
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tidegauge.agent.container_run_dirs.run_dirs import (
    Container,
    ContainerPoll,
    ContainerRunDir,
    seen_from_here,
)
from tidegauge.agent.opening.local import LocalOpener
from tidegauge.agent.opening.port import Opener
from tidegauge.agent.opening.safe_files import UnsafeFileError, opened
from tidegauge.agent.processes.procfs import facts_of
from tidegauge.agent.run_dirs.folders import HostRunDir, RunDir
from tidegauge.agent.source_health import SkipCounts
from tidegauge.agent.tenant_time import FairQueue
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant, itself
from tidegauge.core.proc_stat import effective_uid, parse_proc_stat

LOOK_EVERY_S = 1.0
"""How often candidates are looked at, and containers searched for run directories."""
WALK_EVERY_S = 10.0
"""How often all processes are looked through where no candidates are known (some 4 us each), and every process of a
container that the first does not lead into."""
QUIET_AFTER_S = 60.0
"""A container without a run directory of its own and a process on a GPU for so long is entered at walks only: some
0.1 ms each time, and most containers of a node are none of ours."""
MAX_PROCESSES = 65536
"""Processes looked through at a time; further ones have their turn the next time."""
MAX_NEW_LOOK_S = 0.1
"""Processor time for looking at new namespaces: some 0.3 ms each, and any user makes thousands."""
MAX_CONTAINERS = 512
"""As many more may have a process on a GPU: those must not wait for a place that some sidecar has."""
MAX_CONTAINERS_PER_TENANT = 128
"""Nobody can take all the places of a node."""
MAX_WAYS_IN = 256
"""Processes of one namespace that are remembered."""


class Containers:
    """The containers of this node. Belongs to the search thread; unreadable processes and folders
    raise nothing."""

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        candidates: Callable[[], Collection[int] | None],
        whose: Callable[[Tenant], Tenant] = itself,
        proc: Path = Path("/proc"),
        opener: Opener | None = None,
        max_s_for_new: float = MAX_NEW_LOOK_S,
    ) -> None:
        """``paths``: the node's own run directories, and what they are called in containers. ``candidates``: pids, as
        the host counts them, of all processes that may write rings; where nobody knows (``None``), all processes are
        looked through. ``whose``: the namespace of a pod. ``opener``: by default this process itself, on ``proc``.
        """
        self._host = [HostRunDir(path) for path in paths]
        self._paths = tuple(paths)
        self._candidates = candidates
        self._whose = whose
        self._proc = proc
        self._opener = opener or LocalOpener(proc)
        self.poll = ContainerPoll(whose)
        self._own_namespace = _inode(proc / "self/ns/mnt")
        self._containers: dict[int, Container] = {}
        self._turns = FairQueue[Container]()
        self._found: dict[Container, Mapping[Path, tuple[int, int]]] = {}
        """Run directories in each, by device and inode, as they were at its last turn."""
        self._run_dirs: dict[tuple[Path, tuple[int, int]], ContainerRunDir] = {}
        self._refused: set[tuple[Container, Path]] = set()
        self._max_s_for_new = max_s_for_new
        self._next_pid = 0
        """At which the next walk begins."""
        self._waiting: dict[int, dict[int, None]] = {}
        """Processes by namespace, of those that are new and were not looked at yet."""
        self._look_s = float("-inf")
        self._walk_s = float("-inf")

    @property
    def run_dirs(self) -> tuple[RunDir, ...]:
        """The run directories found by the last look."""
        return tuple(self._run_dirs.values())

    def look(self, now_s: float, gpu_pids: Iterable[int], skips: SkipCounts) -> None:
        """Search again. ``now_s`` is a monotonic clock; ``gpu_pids`` are always candidates;
        ``skips`` counts each refused folder once."""
        if now_s - self._look_s < LOOK_EVERY_S or self._own_namespace is None:
            return
        thoroughly = now_s - self._walk_s >= WALK_EVERY_S
        candidates, are_all = self._candidates(), True
        if candidates is None and thoroughly:
            candidates, are_all = self._pids_in_turn()
        on_gpus = self._take(tuple(gpu_pids), candidates, are_all=are_all)
        self._search(skips, now_s, on_gpus, thoroughly=thoroughly)
        # Last: a look that fails is taken again by the next poll, and counts as failing until one has worked.
        self._look_s = now_s
        if thoroughly:
            self._walk_s = now_s

    def _pids_in_turn(self) -> tuple[list[int], bool]:
        """Pids, and whether they are all that there are."""
        with suppress(OSError), os.scandir(self._proc) as entries:
            pids = sorted(int(entry.name) for entry in entries if entry.name.isdigit())
            if len(pids) <= MAX_PROCESSES:
                return pids, True
            first = bisect_left(pids, self._next_pid)
            chosen = [*pids[first:], *pids[:first]][:MAX_PROCESSES]
            self._next_pid = chosen[-1] + 1
            return chosen, False
        return [], True

    def _take(self, gpu_pids: Sequence[int], candidates: Collection[int] | None, *, are_all: bool) -> frozenset[int]:
        """The namespaces with a process on a GPU."""
        all_there_are = candidates is not None and are_all
        seen: dict[int, dict[int, None]] = {}
        self._sort(gpu_pids, seen)
        on_gpus = frozenset(seen)
        self._sort(candidates or (), seen)
        if candidates is not None:
            self._waiting = {one: there for one, there in seen.items() if one not in self._containers}
        for namespace, there in seen.items():
            container = self._containers.get(namespace)
            if container is not None:
                known = {process.pid: process for process in container.ways_in}
                kept = [process for pid, process in known.items() if pid in there or not all_there_are]
                new = [process for pid in there if pid not in known and (process := self._process(pid)) is not None]
                container.ways_in = tuple([*kept, *new][:MAX_WAYS_IN]) or container.ways_in
            elif namespace in on_gpus:
                self._waiting.pop(namespace, None)
                self._add(namespace, there, on_gpu=True)
        self._add_waiting()
        if all_there_are:
            self._containers = {name: one for name, one in self._containers.items() if name in seen}
        elif candidates is not None:
            self._containers = {name: one for name, one in self._containers.items() if name in seen or self._lives(one)}
        return on_gpus

    def _lives(self, container: Container) -> bool:
        return any(self._process(process.pid) == process for process in container.ways_in)

    def _add_waiting(self) -> None:
        """Look at namespaces that are new, by turns of the users who own their processes, as long as there is time."""
        deadline_s = time.thread_time() + self._max_s_for_new
        of_user: dict[int, list[int]] = {}
        for namespace, there in self._waiting.items():
            of_user.setdefault(_owner(f"{self._proc}/{next(iter(there))}"), []).append(namespace)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*of_user.values()))
        for namespace in turns:
            if time.thread_time() >= deadline_s:
                return
            if namespace is not None:
                self._add(namespace, self._waiting.pop(namespace), on_gpu=False)

    def _add(self, namespace: int, there: Iterable[int], *, on_gpu: bool) -> None:
        ways_in = tuple(process for pid in there if (process := self._process(pid)) is not None)
        if ways_in and (tenant := self._tenant_with_room(ways_in[0], on_gpu)) is not None:
            self._containers[namespace] = Container(namespace, tenant, ways_in)

    def _sort(self, pids: Iterable[int], seen: dict[int, dict[int, None]]) -> None:
        """Put processes of containers into ``seen``, by their mount namespaces."""
        pids = tuple(pids)
        for pid, namespace in zip(pids, self._opener.mount_namespaces(pids), strict=True):
            if namespace is not None and namespace != self._own_namespace:
                there = seen.setdefault(namespace, {})
                if len(there) < MAX_WAYS_IN:
                    there[pid] = None

    def _tenant_with_room(self, process: ProcessId, on_gpu: bool) -> Tenant | None:
        """The process's tenant, if it may have one more container."""
        uid = effective_uid(self._read(process.pid, "status"))
        if uid is None:
            return None
        tenant = facts_of(process, uid, self._read(process.pid, "cgroup"), opener=self._opener).tenant
        whose = self._whose(tenant)
        of_tenant = sum(self._whose(container.tenant) == whose for container in self._containers.values())
        places = 2 * MAX_CONTAINERS if on_gpu else MAX_CONTAINERS
        return tenant if len(self._containers) < places and of_tenant < MAX_CONTAINERS_PER_TENANT else None

    def _search(self, skips: SkipCounts, now_s: float, on_gpus: Collection[int], *, thoroughly: bool) -> None:
        """See which run directories there are, and through which containers each is reached."""
        before, self._found = self._found, {}
        hosts = {identity for run_dir in self._host if (identity := _identity_of(run_dir)) is not None}
        for container in self._turns.in_order(self._containers.values()):
            known = before.get(container, {})
            has_own = not hosts.issuperset(known.values())
            if has_own or container.active_s is None or container.mount_namespace in on_gpus:
                container.active_s = now_s
            is_quiet = now_s - container.active_s >= QUIET_AFTER_S
            if (is_quiet and not thoroughly) or not self.poll.has_time(container.tenant):
                self._found[container] = known
                continue
            with self.poll.time.spent_by(container.tenant):
                self._found[container] = self._run_dirs_in(container, skips, now_s, every_way=thoroughly)
            self._turns.had(container)
        found: dict[tuple[Path, tuple[int, int]], list[Container]] = {}
        for container in self._containers.values():
            for path, identity in self._found[container].items():
                if identity not in hosts:
                    found.setdefault((path, identity), []).append(container)
        run_dirs, self._run_dirs = self._run_dirs, {}
        for key, containers in found.items():
            run_dir = run_dirs.get(key) or ContainerRunDir(*key, self._opener, self.poll, ())
            run_dir.containers = tuple(containers)
            self._run_dirs[key] = run_dir
        living = set(self._containers.values())
        self._refused = {(container, path) for container, path in self._refused if container in living}

    def _run_dirs_in(
        self, container: Container, skips: SkipCounts, now_s: float, *, every_way: bool
    ) -> dict[Path, tuple[int, int]]:
        """The run directories, by device and inode. Enters through the first process that lives; with ``every_way``
        through each of them until all are found or time is up: the next one comes first at the next turn."""
        found: dict[Path, tuple[int, int]] = {}
        missing = list(self._paths)
        refused: dict[Path, UnsafeFileError | OSError] = {}
        for at, process in enumerate(container.ways_in):
            if at and not self.poll.has_time(container.tenant):
                container.ways_in = container.ways_in[at:] + container.ways_in[:at]
                break
            try:
                with self._opener.entered(process, container.mount_namespace) as namespace:
                    for path in tuple(missing):
                        try:
                            with namespace.open(path) as run_dir:
                                found[path] = run_dir.identity
                        except FileNotFoundError:
                            pass
                        except (UnsafeFileError, OSError) as error:
                            refused.setdefault(path, error)
                            continue
                        missing.remove(path)
            except ProcessLookupError:
                continue
            except OSError as error:
                refused.update((path, error) for path in missing if path not in refused)
            if found and at:
                container.ways_in = (process, *(other for other in container.ways_in if other != process))
            if not (missing and every_way):
                break
        for path in self._paths:
            if path in found:
                self._refused.discard((container, path))
            elif path in missing and path in refused and (container, path) not in self._refused:
                self._refused.add((container, path))
                why = refused[path]
                reason = why.reason if isinstance(why, UnsafeFileError) else "permission"
                skips.add(reason, seen_from_here(container, path), str(why), now_s=now_s)
        return found

    def _process(self, pid: int) -> ProcessId | None:
        stat = parse_proc_stat(self._read(pid, "stat"))
        return None if stat is None else stat.process

    def _read(self, pid: int, name: str) -> str:
        with suppress(OSError), opened(f"{self._proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC) as fd:
            return os.read(fd, 1 << 16).decode(errors="replace")
        return ""


def _inode(path: Path | str) -> int | None:
    """A namespace's inode; ``None`` if the process ended, or may not be looked into."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _owner(process: str) -> int:
    """Owner of a process's folder, which is mostly its effective uid; -1 once it has ended."""
    try:
        return os.stat(process).st_uid
    except OSError:
        return -1


def _identity_of(run_dir: RunDir) -> tuple[int, int] | None:
    with suppress(OSError, UnsafeFileError), run_dir.opened() as there:
        return there.identity
    return None
