"""Which records of ``tidegauge run`` are looked at: any user may make more names than there are places.

A launch whose keeper lives keeps its place. What is left is shared in turn between tenants, and between the folders of
a tenant: nobody's names take the place of another's launch, whose exemption would be lost with it.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from tidegauge.agent.folder_changes import FolderChanges
from tidegauge.agent.folders import RefusedError, RunDir, UserFolder
from tidegauge.agent.safe_files import opened_folder
from tidegauge.agent.user_folders import UserFolders
from tidegauge.core.run_dirs import LAUNCH_SUFFIX, process_of
from tidegauge.core.tenants import Tenant, itself

MAX_LAUNCHES = 512
MAX_LAUNCHES_PER_TENANT = 128
"""Nobody can take all the places of a node, with living keepers neither."""
MAX_LAUNCHES_PER_FOLDER = 64
MAX_NAMES_PER_FOLDER = 12288
"""Names that are looked at, as for rings."""


class RecordPlace(NamedTuple):
    """Where a record lies."""

    folder: UserFolder
    name: str


class LaunchNames:
    """Of all users' folders. For one thread."""

    def __init__(self, run_dirs: Callable[[], Sequence[RunDir]], whose: Callable[[Tenant], Tenant] = itself) -> None:
        """``run_dirs``: those that there are now. ``whose``: the namespace of a pod."""
        self._run_dirs = run_dirs
        self._whose = whose
        self._listings: dict[RunDir, UserFolders] = {}
        self._living: Collection[RecordPlace] = ()
        self._changes = FolderChanges()
        self._names: dict[UserFolder, tuple[str, ...]] = {}
        """What was found in folders that have any, of living launches first, then the newest."""
        self._random = random.Random()

    def look(self, now_s: float, living: Collection[RecordPlace]) -> list[RecordPlace]:
        """Records that have a place now. ``now_s`` is a monotonic clock; ``living``: those whose keeper lives."""
        self._living = living
        known, changed_ns = self._folders(now_s)
        self._changes.keep(known)
        by_folder: dict[UserFolder, set[str]] = {}
        for folder, name in living:
            by_folder.setdefault(folder, set()).add(name)
        for folder in self._names.keys() - known:
            del self._names[folder]
        for folder, mtime_ns in changed_ns.items():
            if self._changes.must_list(folder, mtime_ns):
                try:
                    names = self._list(folder, by_folder.get(folder, ()))
                except OSError:  # out of descriptors, say: what is known of the folder stays until it can be listed
                    self._changes.unsettle(folder)
                    continue
                self._names.pop(folder, None)
                if names:
                    self._names[folder] = names
        return self._share(by_folder)

    def _folders(self, now_s: float) -> tuple[set[UserFolder], dict[UserFolder, int | None]]:
        """All that there are, and of those whose turn it is when names in them last changed."""
        run_dirs = self._run_dirs()
        known, self._listings = self._listings, {}
        for run_dir in run_dirs:
            self._listings[run_dir] = known.get(run_dir) or UserFolders(run_dir, self._in_use)
        all_there_are: set[UserFolder] = set()
        found: dict[UserFolder, int | None] = {}
        for listing in self._listings.values():
            with suppress(RefusedError, OSError):  # the ring finder has said so already
                look = listing.look(now_s)
                all_there_are.update(look.known)
                found.update(look.folders)
        return all_there_are, found

    def _in_use(self) -> set[UserFolder]:
        return {folder for folder, _ in self._living}

    def _list(self, folder: UserFolder, living: Collection[str]) -> tuple[str, ...]:
        """Raises ``OSError``. A folder that is gone, or is none, has no names."""
        try:
            with opened_folder(folder) as there, os.scandir(there.fd) as entries:
                names = [entry.name for entry in islice(entries, MAX_NAMES_PER_FOLDER)]
        except (RefusedError, FileNotFoundError):
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
    """A folder's names; those of ``living`` launches have their places."""

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
    """Each next place goes to who has the fewest of those who wait. ``queues``: how many places a tenant has, and what
    waits for more."""
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
