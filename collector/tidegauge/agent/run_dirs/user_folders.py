"""The users' folders of a run directory, among any number of other names: anybody may create names in it.

A folder counts if its name is its owner's uid, so a user has one, however many names they create. Finding a name's
owner costs some 15 us, because the file system itself must not be asked (``safe_files``); so it is done once per file,
and for a limited number at a time. An owner of a range of uids may create a folder for each: when all
places are taken, a new folder replaces a known one that is not in use, at random. One in use keeps its place.
"""

from __future__ import annotations

import random
import stat
from collections.abc import Callable, Collection
from contextlib import suppress
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

from tidegauge.agent.opening.port import OpenRunDir
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.run_dirs.folders import RunDir, UserFolder

MAX_FOLDERS = 4096
"""Users of a node with known folders."""
MAX_ENTRIES = 1 << 18
"""Names of a run directory that are listed; more are one user's attempt to hide the others'."""
MAX_FOLDERS_OF_CONTAINER = 64
"""In a container owners prove nothing, so every name counts; users there are few."""
MAX_ENTRIES_OF_CONTAINER = 4096
ENTRIES_PER_S = 8_000
"""Names listed in a second on average, each for 1 to 5 us: many of them are followed by a pause."""
MAX_IDLE_LOOKS = 256
"""Folders not in use that are looked into at a time, for some 40 us each; more of them take turns."""
MAX_LOOKS = 512
"""New names whose owner is looked up at a time."""
GIVES_WAY_S = 30.0
"""Age at which a known folder may give way to a new one: a starting process has time to make a ring."""
LOOKS_AGAIN = 16
"""Refused names that are checked again at a time: root may have given a folder back to its user."""


class FoundFolders(NamedTuple):
    """The result of one look."""

    folders: list[tuple[UserFolder, int | None]]
    """Folders whose turn it was, with their mtime in ns; ``None``: unknown."""
    refused: list[tuple[UserFolder, UnsafeFileError]]
    """New names that are no user's folder."""


class _Known(NamedTuple):
    inode: int
    since_s: float
    looked: int = 0
    """The look of its last turn; 0: none."""


class UserFolders:
    """The users' folders of one run directory. For one thread."""

    def __init__(self, run_dir: RunDir, in_use: Callable[[], Collection[UserFolder]] = frozenset) -> None:
        """``in_use``: folders that must not give way to new ones, called when all places are taken."""
        self._run_dir = run_dir
        self._in_use = in_use
        self._most = MAX_FOLDERS if run_dir.mount_namespaces is None else MAX_FOLDERS_OF_CONTAINER
        self.known: tuple[UserFolder, ...] = ()
        """All folders at the last look."""
        self._known: dict[str, _Known] = {}
        """By name."""
        self._giving_way: list[str] | None = None
        """Known folders that may give way in this look, in random order; ``None`` until needed."""
        self._refused: dict[str, int] = {}
        """Inodes by name, the next one to check again first."""
        self._new: list[tuple[str, int]] = []
        """Names whose owner is not looked up yet, with their inodes; taken at random, so that none is always last."""
        self._next_s = float("-inf")
        self._looks = 0
        self._random = random.Random()
        """Seeded by the system: a predictable state would let users arrange their turns."""
        self._said_too_many = False

    def look(self, there: OpenRunDir, now_s: float) -> FoundFolders:
        """``there``: the run directory. ``now_s`` is a monotonic clock. Raises ``OSError``."""
        self._giving_way = None
        refused = self._list(there, now_s) if now_s >= self._next_s else []
        refused += self._look_at_new(there, now_s)
        self._look_again(there, now_s)
        known = {name: UserFolder(self._run_dir, int(name)) for name in self._known}
        self.known = tuple(known.values())
        return FoundFolders([(known[name], _changed_ns(there, name)) for name in self._whose_turn()], refused)

    def _whose_turn(self) -> list[str]:
        """All folders in use, and of the others those that have waited longest."""
        if len(self._known) <= MAX_IDLE_LOOKS:
            return list(self._known)
        self._looks += 1
        in_use = self._names_in_use()
        others = (name for name in self._known if name not in in_use)
        idle = nsmallest(MAX_IDLE_LOOKS, others, key=lambda name: self._known[name].looked)
        for name in idle:
            self._known[name] = self._known[name]._replace(looked=self._looks)
        return [*(name for name in self._known if name in in_use), *idle]

    def _names_in_use(self) -> set[str]:
        return {str(folder.uid) for folder in self._in_use() if folder.run_dir == self._run_dir}

    def _list(self, there: OpenRunDir, now_s: float) -> list[tuple[UserFolder, UnsafeFileError]]:
        most = MAX_ENTRIES if self._run_dir.mount_namespaces is None else MAX_ENTRIES_OF_CONTAINER
        seen, entries = there.uids(most)
        self._next_s = now_s + entries / ENTRIES_PER_S
        all_seen = entries < most
        self._known = {
            name: known
            for name, known in self._known.items()
            # A truncated listing may lack it: then the name itself is looked up.
            if (seen.get(name) if all_seen or name in seen else _inode_of(there, name)) == known.inode
        }
        self._refused = {name: inode for name, inode in self._refused.items() if seen.get(name) == inode}
        self._new = [one for one in seen.items() if one[0] not in self._known and one[0] not in self._refused]
        too_many = entries >= most or len(self._known) >= self._most
        before, self._said_too_many = self._said_too_many, too_many
        if not too_many or before:
            return []
        return [(UserFolder(self._run_dir, -1), UnsafeFileError("too_many", "too many entries: the rest is not read"))]

    def _look_at_new(self, there: OpenRunDir, now_s: float) -> list[tuple[UserFolder, UnsafeFileError]]:
        chosen = []
        for _ in range(min(MAX_LOOKS, len(self._new))):
            at = self._random.randrange(len(self._new))
            self._new[at], self._new[-1] = self._new[-1], self._new[at]
            chosen.append(self._new.pop())
        return [
            (UserFolder(self._run_dir, int(name)), error)
            for name, inode in chosen
            if (error := self._judge(there, name, inode, now_s)) is not None
        ]

    def _judge(self, there: OpenRunDir, name: str, inode: int, now_s: float) -> UnsafeFileError | None:
        """Accept a name as a user's folder, or refuse it and return the reason."""
        full = len(self._known) >= self._most
        giving_way = self._may_give_way(now_s) if full else []
        if full and not giving_way:
            return None
        try:
            self._check(there, name)
        except OSError:
            return None  # gone again, or we may not look: next time is another chance
        except UnsafeFileError as error:
            self._refused[name] = inode
            return error
        if full:
            del self._known[giving_way.pop()]
        self._known[name] = _Known(inode, now_s)
        return None

    def _may_give_way(self, now_s: float) -> list[str]:
        if self._giving_way is None:
            in_use = self._names_in_use()
            self._giving_way = [
                name
                for name, known in self._known.items()
                if name not in in_use and now_s - known.since_s >= GIVES_WAY_S
            ]
            self._random.shuffle(self._giving_way)
        return self._giving_way

    def _check(self, there: OpenRunDir, name: str) -> None:
        """Raises ``UnsafeFileError`` unless it is a user's folder, and ``OSError``."""
        seen = there.look_at(name)
        if not stat.S_ISDIR(seen.mode):
            raise UnsafeFileError("symlink" if stat.S_ISLNK(seen.mode) else "not_directory", "it is not a folder")
        if self._run_dir.mount_namespaces is None and str(seen.uid) != name:
            raise UnsafeFileError("owner", f"the folder belongs to uid {seen.uid}")

    def _look_again(self, there: OpenRunDir, now_s: float) -> None:
        for name, inode in list(islice(self._refused.items(), LOOKS_AGAIN)):
            del self._refused[name]
            self._judge(there, name, inode, now_s)  # at the end again, if it is refused again


def _inode_of(there: OpenRunDir, name: str) -> int | None:
    with suppress(UnsafeFileError, OSError):
        return there.look_at(name).inode
    return None


def _changed_ns(there: OpenRunDir, name: str) -> int | None:
    with suppress(UnsafeFileError, OSError):
        return there.look_at(name).mtime_ns
    return None


class FolderChanges:
    """Tracks changes of many folders. For one thread.

    The kernel's timestamps are some milliseconds coarse: a folder counts as settled only if at the following look
    its mtime is still the one before the listing.
    """

    def __init__(self) -> None:
        self._seen_ns: dict[UserFolder, int] = {}
        self._settled: set[UserFolder] = set()

    def must_list(self, folder: UserFolder, mtime_ns: int | None) -> bool:
        """Whether to list the folder; call once per look. ``mtime_ns``: read before the listing that may follow."""
        if mtime_ns is None:
            return True
        if self._seen_ns.get(folder) != mtime_ns:
            self._seen_ns[folder] = mtime_ns
            self._settled.discard(folder)
            return True
        if folder in self._settled:
            return False
        self._settled.add(folder)
        return True

    def unsettle(self, folder: UserFolder) -> None:
        """List it at the next look, too."""
        self._settled.discard(folder)

    def keep(self, folders: Collection[UserFolder]) -> None:
        """Forget all but these."""
        self._seen_ns = {folder: seen for folder, seen in self._seen_ns.items() if folder in folders}
        self._settled.intersection_update(folders)
