"""Finds ring files: ``<run dir>/<uid>/<pid>-<starttime>.ring`` (design 3.2). What is opened here is safe to read.

Everybody may write below a run directory, so nothing is followed and nothing is believed (``safe_files``). What is
refused is said once and looked at again when the file has changed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.safe_files import (
    RefusedError,
    Signature,
    look_at,
    open_checked,
    opened_folder,
    reason_of,
    remove,
    uids_in,
)
from tidegauge.agent.skips import SkipCounts
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import RING_SUFFIX, process_of, socket_name

MAX_RINGS_PER_UID = 4096
MAX_OPENS_PER_POLL = 256
"""Each costs some 50 us with what follows; what is left over has its turn at the next poll."""
MAX_ENTRIES_PER_UID = 3 * MAX_RINGS_PER_UID
"""Rings, their sockets and what else lies there: beyond it a folder is somebody's attempt to keep us busy."""
RECHECK_S = 5.0
"""How often refused files are compared with what they were. New files are found at once, by their folder's mtime."""
BLANK_GRACE_S = 10.0
"""For how long a ring without its first bytes is taken for one that is just being made."""


class Place(NamedTuple):
    """The name of a ring, of a user's folder (``name`` is then empty), or of a run directory (``uid`` is -1)."""

    run_dir: Path
    uid: int
    name: str

    @property
    def path(self) -> Path:
        return self.run_dir / str(self.uid) / self.name if self.uid >= 0 else self.run_dir


class RingFile(NamedTuple):
    """A ring that may be read: an open file that belongs to ``place.uid``. Its content is still to be checked."""

    place: Place
    process: ProcessId
    """From the file's name: a claim, until the kernel knows such a process."""
    fd: int
    signature: Signature


class RingFinder:
    """Knows which rings were handed out and which were refused. Not thread-safe."""

    def __init__(self, run_dirs: Sequence[Path], skips: SkipCounts) -> None:
        self._run_dirs = tuple(run_dirs)
        self._skips = skips
        self._seen_mtime_ns: dict[Path, int] = {}
        self._settled: set[Path] = set()
        self._known: dict[Place, Signature] = {}
        """Rings that were handed out."""
        self._refused: dict[Place, Signature | None] = {}
        self._blank_since_s: dict[Place, float] = {}
        self._recheck_at_s = float("-inf")
        self._opens_left = 0
        self._turn = 0

    def new_rings(self, now_s: float) -> list[RingFile]:
        """Open the rings that were not there, or not acceptable, before. ``now_s`` is a monotonic clock."""
        recheck = now_s >= self._recheck_at_s
        if recheck:
            self._recheck_at_s = now_s + RECHECK_S
        folders = [folder for run_dir in self._run_dirs for folder in self._folders(run_dir, now_s)]
        if recheck:
            self._forget_all_but(folders)
        found: list[RingFile] = []
        self._opens_left = MAX_OPENS_PER_POLL
        self._turn += 1
        for at in range(len(folders)):
            folder = folders[(at + self._turn) % len(folders)]  # nobody is always the last
            if self._changed(folder.path) or recheck:
                found.extend(self._list_folder(folder, now_s))
        return found

    def postpone(self, ring: RingFile, *, now_s: float) -> None:
        """``ring`` has no first bytes yet: close it and look again; say so once if it stays like that."""
        self._release(ring)
        since_s = self._blank_since_s.setdefault(ring.place, now_s)
        if now_s - since_s < BLANK_GRACE_S:
            self._settled.discard(ring.place.path.parent)
        else:
            self._say_once(ring.place, "magic", "it stays blank", now_s)

    def refuse(self, ring: RingFile, reason: str, why: str, *, now_s: float) -> None:
        """The content of ``ring`` is not acceptable: close it, say so once, look again when the file has changed."""
        signature = Signature.of(os.fstat(ring.fd))  # it may have been cut since it was opened
        self._release(ring)
        self._say(ring.place, signature, reason, why, now_s)

    def put_off(self, ring: RingFile, reason: str, why: str, *, now_s: float) -> None:
        """Something failed that is not the ring's doing: close it, say so once, find it again some seconds later."""
        self._release(ring)
        self._say_once(ring.place, reason, why, now_s)

    def set_aside(self, ring: RingFile) -> None:
        """Close ``ring`` and find it again some seconds later, without a word."""
        self._release(ring)
        self._refused.setdefault(ring.place, None)

    def forget(self, ring: RingFile) -> None:
        """Close ``ring``; if its file is still there, it will be found again."""
        self._release(ring)
        self._settled.discard(ring.place.path.parent)

    def remove(self, ring: RingFile) -> None:
        """Close ``ring`` and delete its file and its command socket: the process has ended.

        Raises ``OSError`` if the folder does not let us. Only names in the owner's own folder are touched, and the ring
        only while it is the file that was read.
        """
        self._release(ring)
        folder, name = ring.place.path.parent, ring.place.name
        remove(folder, name, ring.signature, socket=socket_name(ring.process), uid=ring.place.uid)

    def _release(self, ring: RingFile) -> None:
        os.close(ring.fd)
        known = self._known.get(ring.place)
        if known is not None and known.same_file(ring.signature):
            del self._known[ring.place]

    def _forget_all_but(self, folders: Sequence[Place]) -> None:
        """Drop what is remembered of users' folders that are gone: people come and go for as long as the agent runs."""
        paths = {folder.path for folder in folders}
        self._seen_mtime_ns = {path: seen for path, seen in self._seen_mtime_ns.items() if path in paths}
        self._settled &= paths
        for remembered in (self._refused, self._blank_since_s):
            for place in [place for place in remembered if place.uid >= 0 and _folder_of(place).path not in paths]:
                del remembered[place]

    def _folders(self, run_dir: Path, now_s: float) -> Iterator[Place]:
        try:
            for uid in uids_in(run_dir):
                yield Place(run_dir, uid, "")
        except OSError as error:
            self._say_once(
                Place(run_dir, -1, ""), reason_of(error, run_dir), f"cannot be listed: {error.strerror}", now_s
            )

    def _changed(self, folder: Path) -> bool:
        """Whether names came or went since the folder was last listed, from its mtime.

        The kernel's timestamps are some milliseconds coarse: a folder counts as settled only when a whole poll
        later its mtime is still the one before the listing.
        """
        try:
            mtime_ns = os.lstat(folder).st_mtime_ns
        except OSError:
            return True
        if self._seen_mtime_ns.get(folder) != mtime_ns:
            self._seen_mtime_ns[folder] = mtime_ns
            self._settled.discard(folder)
            return True
        if folder in self._settled:
            return False
        self._settled.add(folder)
        return True

    def _list_folder(self, folder: Place, now_s: float) -> list[RingFile]:
        try:
            with opened_folder(folder.path, folder.uid) as fd:
                return self._open_new(fd, folder, self._ring_names(fd, folder, now_s), now_s)
        except RefusedError as refused:
            self._say_once(folder, refused.reason, str(refused), now_s)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._say_once(folder, reason_of(error, folder.path), f"cannot be listed: {error.strerror}", now_s)
        return []

    def _ring_names(self, fd: int, folder: Place, now_s: float) -> list[str]:
        with os.scandir(fd) as entries:
            names = [entry.name for entry in islice(entries, MAX_ENTRIES_PER_UID)]
        rings = sorted(name for name in names if name.endswith(RING_SUFFIX))
        if len(names) == MAX_ENTRIES_PER_UID or len(rings) > MAX_RINGS_PER_UID:
            self._say_once(folder, "too_many", "more files than are looked at", now_s)
        else:
            self._refused.pop(folder, None)
        return rings[:MAX_RINGS_PER_UID]

    def _open_new(self, fd: int, folder: Place, names: Sequence[str], now_s: float) -> list[RingFile]:
        places = [Place(folder.run_dir, folder.uid, name) for name in names]
        there = {folder, *places}
        for remembered in (self._refused, self._blank_since_s):
            for gone in [place for place in remembered if _folder_of(place) == folder and place not in there]:
                del remembered[gone]
        found: list[RingFile] = []
        for place in sorted(places, key=lambda place: place in self._refused):
            if self._opens_left <= 0:
                self._settled.discard(folder.path)
                break
            ring = self._open(fd, place, now_s)
            if ring is not None:
                self._opens_left -= 1
                found.append(ring)
        return found

    def _open(self, folder: int, place: Place, now_s: float) -> RingFile | None:
        """Open one ring, or refuse it. Checked by name first, so that a FIFO or a device is never opened."""
        signature = None
        try:
            signature = look_at(folder, place.name)
            known = self._known.get(place)
            if (known is not None and known.same_file(signature)) or self._refused.get(place) == signature:
                return None
            process = process_of(place.name)
            if process is None:
                raise RefusedError("name", "the name is not <pid>-<starttime>.ring")
            fd, signature = open_checked(folder, place.name, place.uid)
        except RefusedError as refused:
            self._say(place, signature, refused.reason, str(refused), now_s)
            return None
        except FileNotFoundError:
            return None
        except PermissionError as error:
            self._say(place, signature, "permission", f"cannot be opened: {error.strerror}", now_s)
            return None
        except OSError as error:  # out of descriptors, or it became a link just now: next time is another chance
            self._say_once(place, "unreadable", f"cannot be opened: {error.strerror}", now_s)
            return None
        if self._refused.get(place) is not None:  # None: set aside, and what there was to say is said
            del self._refused[place]
        self._known[place] = signature
        return RingFile(place, process, fd, signature)

    def _say_once(self, place: Place, reason: str, why: str, now_s: float) -> None:
        if place not in self._refused:
            self._say(place, None, reason, why, now_s)

    def _say(self, place: Place, signature: Signature | None, reason: str, why: str, now_s: float) -> None:
        self._refused[place] = signature
        self._skips.add(reason, str(place.path), why, now_s=now_s)


def _folder_of(place: Place) -> Place:
    return Place(place.run_dir, place.uid, "")
