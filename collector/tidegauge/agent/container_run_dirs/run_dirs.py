"""Run directories of containers as values that can be opened, and the descriptors held open during one search pass.

Entering a container costs some 0.1 ms, or as much as its user likes: the kernel lists all its mounts. So a pass enters
each once and closes all at its end: an open descriptor keeps a container's memory from being freed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tidegauge.agent.opening.port import Opener, OpenFolder, OpenRunDir
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.run_dirs.folders import NotNowError
from tidegauge.agent.tenant_time import TenantTime
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant, itself


@dataclass(eq=False)
class Container:
    """A mount namespace other than the agent's own."""

    mount_namespace: int
    """Inode of its ns/mnt."""
    tenant: Tenant
    """Of the process that it was first seen by."""
    ways_in: tuple[ProcessId, ...]
    """Processes that were seen there, the one to go by first."""
    active_s: float | None = None
    """When it last was new, had a run directory that is not the node's, or a process on a GPU."""


class ContainerPoll:
    """Runs search passes one after another, with a time limit per tenant. Belongs to the search thread."""

    def __init__(self, whose: Callable[[Tenant], Tenant] = itself) -> None:
        self._whose = whose
        self._times: dict[str, TenantTime] = {}
        self.time = TenantTime(whose)
        """Time of the kind of work that was begun last."""
        self._thread: int | None = None
        self._open: dict[ContainerRunDir, OpenRunDir] = {}
        self.put_off = 0
        """How often, so far, a run directory had to wait for a later pass."""

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """One pass: every tenant gets its time, and every run directory is entered at most once."""
        for one in self._times.values():
            one.begin()
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            for there in self._open.values():
                there.__exit__()
            self._open.clear()

    @property
    def is_ours(self) -> bool:
        """Whether this is the search thread during a pass: time is measured, and descriptors stay open."""
        return self._thread == threading.get_ident()

    def begin(self, work: str) -> None:
        """Begin another kind of work; each kind has its own time, so that none takes all of it."""
        if work not in self._times:
            self._times[work] = TenantTime(self._whose)
        self.time = self._times[work]

    def has_time(self, tenant: Tenant) -> bool:
        """Whether something may be begun for ``tenant``; counts in ``put_off`` if not."""
        is_left = not self.is_ours or self.time.is_left(tenant)
        self.put_off += not is_left
        return is_left

    @contextmanager
    def opened(self, run_dir: ContainerRunDir) -> Iterator[OpenRunDir]:
        """Raises ``NotNowError`` for one that would have to be entered when its tenant's time is used up."""
        if run_dir not in self._open and not self.has_time(run_dir.tenant):
            raise NotNowError(f"{run_dir} is read in a later poll")
        with self.time.spent_by(run_dir.tenant):
            there = self._open.get(run_dir)
            if there is None:
                there = self._open[run_dir] = run_dir.enter()
            yield there


@dataclass(eq=False)
class ContainerRunDir:
    """The ``RunDir`` of one container, or of several that share it."""

    path: Path
    identity: tuple[int, int]
    """Device and inode."""
    opener: Opener
    poll: ContainerPoll
    containers: tuple[Container, ...]
    """At least one."""

    @property
    def mount_namespaces(self) -> Collection[int]:
        return [container.mount_namespace for container in self.containers]

    @property
    def tenant(self) -> Tenant:
        return self.containers[0].tenant

    def has_time(self) -> bool:
        return self.poll.has_time(self.tenant)

    def opened(self) -> AbstractContextManager[OpenRunDir]:
        return self.poll.opened(self) if self.poll.is_ours else self.enter()

    @contextmanager
    def opened_folder(self, uid: int) -> Iterator[OpenFolder]:
        with self.opened() as run_dir, run_dir.folder(uid) as folder:
            yield folder

    def enter(self) -> OpenRunDir:
        """It, which the caller closes. Raises ``OSError``."""
        for container in self.containers:
            with suppress(OSError, UnsafeFileError):
                with self.opener.entered(container.ways_in[0], container.mount_namespace) as namespace:
                    there = namespace.open(self.path)
                if there.identity == self.identity:
                    return there
                there.__exit__()
        raise FileNotFoundError(f"{self} is gone")

    def __str__(self) -> str:
        return seen_from_here(self.containers[0], self.path)


def seen_from_here(container: Container, path: Path) -> str:
    """A path in a container, for people."""
    return f"/proc/{container.ways_in[0].pid}/root{path}"
