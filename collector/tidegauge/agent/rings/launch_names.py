"""Selects the ``tidegauge run`` records to read: any user may create more names than the agent has places for.

A launch whose keeper lives keeps its place. Tenants share the remaining places in turn, and so do a tenant's
folders: no user's names displace another's launch, which would lose its exemption with it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.run_dirs.folders import RunDir, UserFolder, opened_folder
from tidegauge.agent.run_dirs.user_folders import FolderChanges, UserFolders
from tidegauge.agent.tenant_time import FairQueue
from tidegauge.core.jobs.tenants import Tenant, itself
from tidegauge.core.run_dirs import LAUNCH_SUFFIX, process_of

MAX_LAUNCHES = 512
MAX_LAUNCHES_PER_TENANT = 128
"""No tenant can take all the places of a node, even with living keepers."""
MAX_LAUNCHES_PER_FOLDER = 64
MAX_NAMES_PER_FOLDER = 12288
"""Names that are looked at, as for rings."""
MAX_NAMES_PER_FOLDER_OF_CONTAINER = 1536


class RecordPlace(NamedTuple):
    """A record's path."""

    folder: UserFolder
    name: str


class LaunchNames:
    """Lists record names in all users' folders. For one thread."""

    def __init__(self, run_dirs: Callable[[], Sequence[RunDir]], whose: Callable[[Tenant], Tenant] = itself) -> None:
        """``run_dirs``: the current ones. ``whose``: the namespace of a pod."""
        self._run_dirs = run_dirs
        self._whose = whose
        self._listings: dict[RunDir, UserFolders] = {}
        self._turns = FairQueue[RunDir]()
        self._listed_s: dict[UserFolder, float] = {}
        self._living: Collection[RecordPlace] = ()
        self._changes = FolderChanges()
        self._names: dict[UserFolder, tuple[str, ...]] = {}
        """Names in each folder that has any, of living launches first, then the newest."""
        self._random = random.Random()

    def look(self, now_s: float, living: Collection[RecordPlace]) -> list[RecordPlace]:
        """Records that have a place now. ``now_s`` is a monotonic clock; ``living``: those whose keeper lives."""
        self._living = living
        by_folder: dict[UserFolder, set[str]] = {}
        for folder, name in living:
            by_folder.setdefault(folder, set()).add(name)
        run_dirs = self._turns.in_order(self._run_dirs())
        self._listings = {one: self._listings.get(one) or UserFolders(one, self._in_use) for one in run_dirs}
        there: set[UserFolder] = set()
        for run_dir, listing in self._listings.items():
            with suppress(UnsafeFileError, OSError):  # the ring finder has said so already
                self._look_in(run_dir, listing, by_folder, now_s)
                there.update(listing.known)
        self._changes.keep(there)
        self._listed_s = {folder: at_s for folder, at_s in self._listed_s.items() if folder in there}
        for folder in self._names.keys() - there:
            del self._names[folder]
        return self._share(by_folder)

    def _look_in(
        self, run_dir: RunDir, listing: UserFolders, living: Mapping[UserFolder, Collection[str]], now_s: float
    ) -> None:
        """Raises ``UnsafeFileError`` and ``OSError``."""
        if not run_dir.has_time():
            return
        with run_dir.opened() as there:
            changed = [one for one, at_ns in listing.look(there, now_s).folders if self._changes.must_list(one, at_ns)]
            changed.sort(key=lambda folder: self._listed_s.get(folder, float("-inf")))  # nobody is always the last
            for number, folder in enumerate(changed):
                if number and not run_dir.has_time():
                    self._changes.unsettle(folder)
                    continue
                self._listed_s[folder] = now_s
                try:
                    names = self._list(folder, living.get(folder, ()))
                except OSError:  # out of descriptors, say: what is known of the folder stays until it can be listed
                    self._changes.unsettle(folder)
                    continue
                self._names.pop(folder, None)
                if names:
                    self._names[folder] = names
        self._turns.had(run_dir)

    def _in_use(self) -> set[UserFolder]:
        return {folder for folder, _ in self._living}

    def _list(self, folder: UserFolder, living: Collection[str]) -> tuple[str, ...]:
        """Raises ``OSError``. A folder that is gone, or is none, has no names."""
        is_hosts = folder.run_dir.mount_namespaces is None
        most = MAX_NAMES_PER_FOLDER if is_hosts else MAX_NAMES_PER_FOLDER_OF_CONTAINER
        try:
            with opened_folder(folder) as there:
                names = there.names(most)
        except (UnsafeFileError, FileNotFoundError):
            self._changes.unsettle(folder)
            return ()
        records = [name for name in names if name.endswith(LAUNCH_SUFFIX)]
        records.sort(key=lambda name: (name in living, _start_ticks(name)), reverse=True)
        return tuple(records[:MAX_LAUNCHES_PER_FOLDER])

    def _share(self, living: Mapping[UserFolder, Collection[str]]) -> list[RecordPlace]:
        kept = [
            RecordPlace(folder, name)
            for folder, alive in living.items()
            for name in self._names.get(folder, ())
            if name in alive
        ]
        held = Counter(self._whose(place.folder.tenant) for place in kept)
        folders = list(self._names)
        self._random.shuffle(folders)  # nobody is always the last
        by_tenant: dict[Tenant, list[_Waiting]] = {}
        for folder in folders:
            waiting = _Waiting(folder, self._names[folder], living.get(folder, ()))
            by_tenant.setdefault(self._whose(folder.tenant), []).append(waiting)
        queues = [(held[tenant], _in_turn(theirs)) for tenant, theirs in by_tenant.items()]
        return kept + list(islice(_fewest_first(queues), MAX_LAUNCHES - len(kept)))


class _Waiting(NamedTuple):
    """A folder's names; those of ``living`` launches have places already."""

    folder: UserFolder
    names: Sequence[str]
    living: Collection[str]


def _in_turn(folders: Sequence[_Waiting]) -> Iterator[RecordPlace]:
    """Of each folder the first name, then of each the second, and so on."""
    for at in range(MAX_LAUNCHES_PER_FOLDER):
        for folder, names, living in folders:
            if at < len(names) and names[at] not in living:
                yield RecordPlace(folder, names[at])


def _fewest_first(queues: Sequence[tuple[int, Iterator[RecordPlace]]]) -> Iterator[RecordPlace]:
    """Each next place goes to the waiting tenant with the fewest. ``queues``: a tenant's number of places, and the
    records that wait for more."""
    for places in range(MAX_LAUNCHES_PER_TENANT):
        left = []
        for held, queue in queues:
            place = next(queue, None) if held <= places else None
            if place is not None:
                yield place
            if place is not None or held > places:
                left.append((held, queue))
        queues = left


def _start_ticks(name: str) -> int:
    process = process_of(name)
    return -1 if process is None else process.start_ticks
