"""Finds ring files: ``<run dir>/<uid>/<pid>-<starttime>.ring`` (design 3.2), and opens those that are safe to read.

Everybody may write below a run directory, so no link is followed and nothing is trusted (``safe_files``). A refused
file is logged once and checked again when it has changed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from tidegauge.agent.opening.port import OpenFolder
from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError
from tidegauge.agent.run_dirs.folders import NotNowError, RunDir, UserFolder, delete, opened_folder
from tidegauge.agent.run_dirs.user_folders import FolderChanges, UserFolders
from tidegauge.agent.source_health import SkipCounts
from tidegauge.agent.tenant_time import FairQueue, TenantTime
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import RING_SUFFIX, names_beside, process_of, socket_name

MAX_RINGS_PER_FOLDER = 4096
MAX_OPENS_PER_POLL = 256
"""Each costs some 50 us with what follows; further rings have their turn at the next poll."""
MAX_RINGS_PER_FOLDER_OF_CONTAINER = 512
MAX_OPENS_OF_CONTAINER = 64
"""As ``MAX_OPENS_PER_POLL``, of each container's own."""
ENTRIES_PER_RING = 3
"""Rings, their sockets and other files; more entries are an attempt to keep the agent busy."""
RECHECK_S = 5.0
"""How often refused files are checked for changes. New files are found at once, by their folder's mtime."""
BLANK_GRACE_S = 10.0
"""How long a ring without its first bytes counts as being created."""


class RingPlace(NamedTuple):
    """The path of a ring, of a user's folder (``name`` is then empty), or of a run directory (``uid`` is -1 too)."""

    run_dir: RunDir
    uid: int
    """The folder's name (``UserFolder``)."""
    name: str

    @property
    def folder(self) -> UserFolder:
        return UserFolder(self.run_dir, self.uid)

    def __str__(self) -> str:
        if self.uid < 0:
            return str(self.run_dir)
        return f"{self.folder}/{self.name}" if self.name else str(self.folder)


class RingFile(NamedTuple):
    """An open ring file that is safe to read: its folder has the same owner. Its content is not checked yet."""

    place: RingPlace
    uid: int
    """The owner, by the kernel."""
    process: ProcessId
    """From the file's name: a claim, until the kernel knows such a process."""
    fd: int
    signature: Signature


class RingFinder:
    """Finds rings, and remembers those handed out and those refused. Not thread-safe."""

    def __init__(
        self, run_dirs: Callable[[], Sequence[RunDir]], skips: SkipCounts, time: TenantTime | None = None
    ) -> None:
        """``run_dirs``: the current ones; containers come and go. ``time``: the limit for each tenant's folders."""
        self._run_dirs = run_dirs
        self._skips = skips
        self._time = time or TenantTime(max_cpu_s=math.inf)
        self.folders_put_off = 0
        """How often, so far, the rings of a folder had to wait for a later look: its tenant's time was used up."""
        self._listings: dict[RunDir, UserFolders] = {}
        self._changes = FolderChanges()
        self._known: dict[RingPlace, Signature] = {}
        """Rings that were handed out."""
        self._refused: dict[UserFolder, dict[str, Signature | None]] = {}
        """By folder and name, as ``_blank_since_s``, so that a user's entries are searched for that user alone."""
        self._blank_since_s: dict[UserFolder, dict[str, float]] = {}
        self._forget_at_s = float("-inf")
        self._listed_s: dict[UserFolder, float] = {}
        self._opens_left = 0
        self._run_dir_turns = FairQueue[RunDir]()
        self._absent: set[RunDir] = set()
        """Run directories that were missing, or could not be opened, at their last turn."""

    def new_rings(self, now_s: float) -> list[RingFile]:
        """Open the rings that were not there, or not acceptable, before. ``now_s`` is a monotonic clock."""
        run_dirs = self._run_dirs()
        found: list[RingFile] = []
        left = MAX_OPENS_PER_POLL
        for run_dir in self._run_dir_turns.in_order(run_dirs):
            of_container = run_dir.mount_namespaces is not None
            self._opens_left = MAX_OPENS_OF_CONTAINER if of_container else left
            if self._opens_left > 0 and run_dir.has_time():
                found.extend(self._new_rings_in(run_dir, now_s))
                self._run_dir_turns.had(run_dir)
            left = left if of_container else self._opens_left
        if now_s >= self._forget_at_s:
            self._forget_at_s = now_s + RECHECK_S
            self._absent.intersection_update(run_dirs)
            there = (run_dir for run_dir in run_dirs if run_dir not in self._absent)
            self._forget_all_but({one for run_dir in there for one in self._listing_of(run_dir).known}, run_dirs)
        return found

    def _new_rings_in(self, run_dir: RunDir, now_s: float) -> list[RingFile]:
        place = RingPlace(run_dir, -1, "")
        listing = self._listing_of(run_dir)
        is_hosts = run_dir.mount_namespaces is None  # in a container its own run directory counts the time
        found: list[RingFile] = []
        try:
            with run_dir.opened() as there:
                look = listing.look(there, now_s)
                for folder, error in look.refused:
                    self._skips.add(error.reason, str(RingPlace(run_dir, folder.uid, "")), str(error), now_s=now_s)
                changed = [folder for folder, at_ns in look.folders if self._must_list(folder, at_ns, now_s)]
                last_listed_s = [self._listed_s.get(folder, float("-inf")) for folder in changed]
                changed = [changed[at] for at in sorted(range(len(changed)), key=last_listed_s.__getitem__)]
                for number, folder in enumerate(changed):
                    if self._opens_left <= 0 or (number and not run_dir.has_time()):
                        self._changes.unsettle(folder)
                        continue
                    if is_hosts and not self._time.is_left(folder.tenant):
                        self.folders_put_off += 1
                        self._changes.unsettle(folder)
                        continue
                    self._listed_s[folder] = now_s
                    if not is_hosts:
                        found.extend(self._list_folder(folder, now_s))
                        continue
                    with self._time.spent_by(folder.tenant):
                        found.extend(self._list_folder(folder, now_s))
        except NotNowError:
            return found
        except (UnsafeFileError, OSError) as error:
            self._absent.add(run_dir)
            if isinstance(error, UnsafeFileError):
                self._say_once(place, error.reason, str(error), now_s)
            elif not isinstance(error, FileNotFoundError):
                self._say_once(place, "permission", f"cannot be listed: {error.strerror}", now_s)
            return found
        self._absent.discard(run_dir)
        return found

    def _must_list(self, folder: UserFolder, changed_ns: int | None, now_s: float) -> bool:
        recheck = now_s - self._listed_s.get(folder, float("-inf")) >= RECHECK_S
        return self._changes.must_list(folder, changed_ns) or recheck

    def postpone(self, ring: RingFile, *, now_s: float) -> None:
        """``ring`` has no first bytes yet: close it and look again; log once if it stays so."""
        self._release(ring)
        since_s = self._blank_since_s.setdefault(ring.place.folder, {}).setdefault(ring.place.name, now_s)
        if now_s - since_s < BLANK_GRACE_S:
            self._changes.unsettle(ring.place.folder)
        else:
            self._say_once(ring.place, "magic", "it stays empty", now_s)

    def refuse(self, ring: RingFile, reason: str, why: str, *, now_s: float) -> None:
        """The content of ``ring`` is invalid: close it, log that once, look again when the file has changed."""
        signature = Signature.of(os.fstat(ring.fd))  # it may have been cut since it was opened
        self._release(ring)
        self._say(ring.place, signature, reason, why, now_s)

    def put_off(self, ring: RingFile, reason: str, why: str, *, now_s: float) -> None:
        """Reading failed without the ring's fault: close it, log that once, find it again some seconds later."""
        self._release(ring)
        self._say_once(ring.place, reason, why, now_s)

    def set_aside(self, ring: RingFile) -> None:
        """Close ``ring`` and find it again some seconds later."""
        self._release(ring)
        self._refused.setdefault(ring.place.folder, {}).setdefault(ring.place.name, None)

    def is_aside(self, place: RingPlace) -> bool:
        """Whether the ring at ``place`` is to be found again; not if it is gone."""
        return place.name in self._refused.get(place.folder, ())

    def forget(self, ring: RingFile) -> None:
        """Close ``ring``; if its file is still there, it will be found again."""
        self._release(ring)
        self._changes.unsettle(ring.place.folder)

    def remove(self, ring: RingFile) -> None:
        """Close ``ring`` and delete its file, its command socket, its snapshots and evidence: the process has ended.

        Raises ``NotNowError`` when all this is to be done at a later poll, and ``OSError`` if the folder does not let
        us. Only names in the owner's own folder are touched, and the ring only while it is the file that was read.
        """
        socket, files = socket_name(ring.process), names_beside(ring.process)
        try:
            delete(ring.place.folder, ring.place.name, ring.signature, socket=socket, files=files)
        except NotNowError:
            raise
        except OSError:
            self._release(ring)
            raise
        self._release(ring)

    def _release(self, ring: RingFile) -> None:
        os.close(ring.fd)
        known = self._known.get(ring.place)
        if known is not None and known.same_file(ring.signature):
            del self._known[ring.place]

    def _forget_all_but(self, folders: Collection[UserFolder], run_dirs: Sequence[RunDir]) -> None:
        """Forget folders that are gone: users come and go for as long as the agent runs."""
        self._changes.keep(folders)
        self._listed_s = {folder: at_s for folder, at_s in self._listed_s.items() if folder in folders}
        self._listings = {run_dir: listing for run_dir, listing in self._listings.items() if run_dir in run_dirs}
        for remembered in (self._refused, self._blank_since_s):
            for folder in list(remembered):
                there = folder in folders if folder.uid >= 0 else folder.run_dir in run_dirs
                if not there:
                    del remembered[folder]

    def _listing_of(self, run_dir: RunDir) -> UserFolders:
        listing = self._listings.get(run_dir)
        if listing is None:
            listing = self._listings[run_dir] = UserFolders(run_dir, self._in_use)
        return listing

    def _in_use(self) -> set[UserFolder]:
        return {place.folder for place in self._known}

    def _list_folder(self, folder: UserFolder, now_s: float) -> list[RingFile]:
        place = RingPlace(folder.run_dir, folder.uid, "")
        try:
            with opened_folder(folder) as there:
                return self._open_new(there, place, self._ring_names(there, place, now_s), now_s)
        except UnsafeFileError as refused:
            self._say_once(place, refused.reason, str(refused), now_s)
        except FileNotFoundError:
            pass
        except OSError as error:
            self._say_once(place, "permission", f"cannot be listed: {error.strerror}", now_s)
        return []

    def _ring_names(self, there: OpenFolder, folder: RingPlace, now_s: float) -> list[str]:
        is_hosts = folder.run_dir.mount_namespaces is None
        most = MAX_RINGS_PER_FOLDER if is_hosts else MAX_RINGS_PER_FOLDER_OF_CONTAINER
        names = there.names(ENTRIES_PER_RING * most)
        rings = sorted(name for name in names if name.endswith(RING_SUFFIX))
        if len(names) == ENTRIES_PER_RING * most or len(rings) > most:
            self._say_once(folder, "too_many", "too many files: the rest is not read", now_s)
        else:
            self._refused.get(folder.folder, {}).pop("", None)
        return rings[:most]

    def _open_new(self, there: OpenFolder, folder: RingPlace, names: Sequence[str], now_s: float) -> list[RingFile]:
        own = folder.folder
        there_are = {"", *names}
        refused, blank_since_s = self._refused.get(own, {}), self._blank_since_s.get(own, {})
        for name in refused.keys() - there_are:
            del refused[name]
        for name in blank_since_s.keys() - there_are:
            del blank_since_s[name]
        found: list[RingFile] = []
        for name in sorted(names, key=lambda name: name in refused):
            if self._opens_left <= 0:
                self._changes.unsettle(own)
                break
            ring = self._open(there, RingPlace(folder.run_dir, folder.uid, name), now_s)
            if ring is not None:
                self._opens_left -= 1
                found.append(ring)
        return found

    def _open(self, folder: OpenFolder, place: RingPlace, now_s: float) -> RingFile | None:
        """Open one ring, or refuse it."""
        signature = None
        refused_before = self._refused.get(place.folder, {})
        try:
            signature = folder.look_at(place.name)
            known = self._known.get(place)
            if (known is not None and known.same_file(signature)) or refused_before.get(place.name) == signature:
                return None
            process = process_of(place.name)
            if process is None:
                raise UnsafeFileError("name", "the name is not <pid>-<starttime>.ring")
            fd, signature = folder.open_checked(place.name)
        except UnsafeFileError as refused:
            if signature is None:
                self._say_once(place, refused.reason, str(refused), now_s)
            else:
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
        if refused_before.get(place.name) is not None:  # None: set aside, and what there was to say is said
            del refused_before[place.name]
        self._known[place] = signature
        return RingFile(place, folder.uid, process, fd, signature)

    def _say_once(self, place: RingPlace, reason: str, why: str, now_s: float) -> None:
        if not self.is_aside(place):
            self._say(place, None, reason, why, now_s)

    def _say(self, place: RingPlace, signature: Signature | None, reason: str, why: str, now_s: float) -> None:
        self._refused.setdefault(place.folder, {})[place.name] = signature
        self._skips.add(reason, str(place), why, now_s=now_s)
