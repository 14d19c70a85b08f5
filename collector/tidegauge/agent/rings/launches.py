"""Finds this node's ``tidegauge run`` launches: the records beside the rings, and the ranks that descend from a keeper.

A record is trusted as little as a ring (``safe_files``): whether its keeper lives and who owns it comes from the
kernel; the rest is its owner's claim about their own job.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tidegauge.agent.opening.port import OpenFolder
from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError, closing_fd
from tidegauge.agent.ports import ProcSource, has_ended
from tidegauge.agent.processes.command_socket import ProcessSocket
from tidegauge.agent.rings.launch_names import LaunchNames, RecordPlace
from tidegauge.agent.run_dirs.folders import NotNowError, RunDir, UserFolder, delete, opened_folder
from tidegauge.agent.source_health import SkipCounts
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import MAX_RECORD_BYTES, LaunchRecord, LaunchSummary, decode_launch_record
from tidegauge.core.jobs.tenants import Tenant, itself
from tidegauge.core.run_dirs import launch_socket_name, process_of
from tidegauge.core.views import RankView, with_fields
from tidegauge.rate_limited_log import FewLines

_log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
"""How often folders are listed for new records and changed ones; a report goes out as often."""
SEARCH_S = 15.0
"""How long the process of a record is searched for: it may be in a container, where a search costs more."""


@dataclass(eq=False)
class _Launch:
    """A launch record. ``process`` is ``None`` while no living process is known that could have written it."""

    folder: UserFolder
    name: str
    uid: int
    """The owner, by the kernel."""
    claimed: ProcessId
    signature: Signature
    record: LaunchRecord
    process: ProcessId | None = None
    last: ProcessId | None = None
    """The last such process, also when it has ended."""
    unseen_since_s: float = 0.0


class Launches:
    """The launches of this node. The search thread calls ``look``, the polling thread all else, which reflects the last
    look before ``hold``."""

    def __init__(
        self,
        run_dirs: Callable[[], Sequence[RunDir]],
        procs: ProcSource,
        *,
        linger_s: float,
        whose: Callable[[Tenant], Tenant] = itself,
    ) -> None:
        """``run_dirs``: the current ones. ``linger_s``: how long the record of a dead or invisible keeper stays.
        ``whose``: the namespace of a pod."""
        self._names = LaunchNames(run_dirs, whose)
        self._procs = procs
        self._linger_s = linger_s
        self._skips = SkipCounts(_log)
        self._lines = FewLines(_log)
        self._records: dict[RecordPlace, _Launch] = {}
        self._refused: dict[RecordPlace, Signature | None] = {}
        self._found: Mapping[ProcessId, _Launch] = {}
        """Launches whose keeper lives, at the last look."""
        self._living: Mapping[ProcessId, _Launch] = {}
        self._ended: tuple[LaunchSummary, ...] = ()
        self._ended_held: tuple[LaunchSummary, ...] = ()
        self._looks = 0
        self._keepers: dict[ProcessId, ProcessId | None] = {}
        """By rank: the keeper that it descends from."""
        self._named: tuple[int, Collection[ProcessId]] = (0, ())
        """The look at which ranks were last named, and the keepers that lived."""
        self._look_s = float("-inf")

    def look(self, now_s: float) -> None:
        """Update the known launches. ``now_s`` is a monotonic clock."""
        for launch in self._records.values():
            if launch.process is not None and has_ended(self._procs, launch.process):
                launch.process, launch.unseen_since_s = None, now_s
        if now_s - self._look_s >= LOOK_EVERY_S:
            self._looks += 1
            alive = [place for place, launch in self._records.items() if launch.process is not None]
            found = dict.fromkeys(self._names.look(now_s, alive))
            for place in [*(self._records.keys() - found.keys()), *(self._refused.keys() - found.keys())]:
                self._records.pop(place, None)
                self._refused.pop(place, None)
            for place in found:
                self._take(place, now_s)
            self._look_s = now_s  # last: a look that fails is taken again by the next poll
        self._found = {launch.process: launch for launch in self._records.values() if launch.process is not None}
        over = [launch for launch in self._records.values() if launch.process is None and _is_over(launch)]
        self._ended = tuple(_summary(launch.last or launch.claimed, launch) for launch in over)

    def hold(self) -> None:
        """Show the launches found so far, until the next call."""
        self._living, self._ended_held = self._found, self._ended

    @property
    def summaries(self) -> tuple[LaunchSummary, ...]:
        """Every keeper that lives, in a fixed order."""
        return tuple(_summary(process, launch) for process, launch in sorted(self._living.items()))

    @property
    def ended(self) -> tuple[LaunchSummary, ...]:
        """Those that ended lately, with their exit status: also while there was no agent."""
        return self._ended_held

    def sockets(self) -> dict[ProcessId, ProcessSocket]:
        return {
            process: ProcessSocket(launch.folder, launch.uid, launch_socket_name(launch.claimed), process)
            for process, launch in self._living.items()
        }

    def named(self, ranks: Sequence[RankView]) -> tuple[RankView, ...]:
        """``ranks`` with the keeper that each descends from, where there is one."""
        living, (looks, keepers) = self._living, self._named
        if living.keys() != keepers:
            self._keepers.clear()
        elif looks != self._looks:
            # One without a keeper may only have lost a parent while its chain was read.
            self._keepers = {rank: keeper for rank, keeper in self._keepers.items() if keeper is not None}
        self._named = self._looks, living.keys()
        self._keepers = {rank.process: self._keeper_of(rank, living) for rank in ranks}
        return tuple(
            rank if (keeper := self._keepers[rank.process]) is None else with_fields(rank, launch=keeper)
            for rank in ranks
        )

    def _keeper_of(self, rank: RankView, living: Mapping[ProcessId, _Launch]) -> ProcessId | None:
        if rank.process in self._keepers or not living or not rank.alive:
            return self._keepers.get(rank.process)
        with suppress(OSError):
            for ancestor in self._procs.ancestors(rank.process):
                launch = living.get(ancestor)
                if launch is not None and launch.uid == rank.uid:
                    return ancestor
        return None

    def _take(self, place: RecordPlace, now_s: float) -> None:
        """Read a record that is new or has changed; search for its keeper; delete what is left of a dead one."""
        folder, name = place
        known = self._records.get(place)
        try:
            with opened_folder(folder) as there:
                signature = there.look_at(name)
                if self._refused.get(place) == signature:
                    return
                if known is None or known.signature != signature:
                    known = self._read(there, folder, name, known, now_s)
        except (FileNotFoundError, NotNowError):
            return
        except (UnsafeFileError, OSError) as error:
            self._refuse(place, error, now_s)
            return
        self._records[place] = known
        self._refused.pop(place, None)
        if known.process is None:
            self._search(known, now_s)

    def _read(self, there: OpenFolder, folder: UserFolder, name: str, before: _Launch | None, now_s: float) -> _Launch:
        """Raises ``UnsafeFileError`` and ``OSError``."""
        claimed = process_of(name)
        if claimed is None:
            raise UnsafeFileError("name", "the name is not <pid>-<starttime>.job")
        file, signature = there.open_checked(name)
        with closing_fd(file):
            data = os.read(file, MAX_RECORD_BYTES + 1)
        try:
            record = decode_launch_record(data)
        except ValueError as error:
            raise UnsafeFileError("record", str(error)) from error
        if record.process != claimed:
            raise UnsafeFileError("process", f"it is of process {record.process.pid}, but its name of {claimed.pid}")
        launch = _Launch(folder, name, there.uid, claimed, signature, record, unseen_since_s=now_s)
        return launch if before is None else replace(launch, process=before.process, last=before.last)

    def _search(self, launch: _Launch, now_s: float) -> None:
        unseen_s = now_s - launch.unseen_since_s
        over = unseen_s >= self._linger_s
        namespaces = launch.folder.run_dir.mount_namespaces
        try:
            searched = (unseen_s <= SEARCH_S and not _is_over(launch)) or over
            facts = self._procs.find(launch.claimed, mount_namespaces=namespaces) if searched else None
        except OSError:
            return
        if facts is not None and facts.uid == launch.uid:
            launch.process = launch.last = facts.process
        elif over and namespaces is not None and launch.last is None:
            launch.unseen_since_s = now_s  # not ours to delete (RunDir); search again
        elif over:
            self._records.pop(RecordPlace(launch.folder, launch.name), None)
            try:
                delete(
                    launch.folder, launch.name, launch.signature, socket=launch_socket_name(launch.claimed)
                )  # fmt: skip
            except OSError as error:
                text = "the record of an ended tidegauge run cannot be deleted, %s: %s"
                self._lines.say(logging.INFO, text, launch.name, error, now_s=now_s)

    def _refuse(self, place: RecordPlace, error: Exception, now_s: float) -> None:
        folder, name = place
        self._records.pop(place, None)
        reason = error.reason if isinstance(error, UnsafeFileError) else "unreadable"
        if place not in self._refused:
            self._skips.add(reason, f"{folder}/{name}", str(error), now_s=now_s)
        try:
            with opened_folder(folder) as there:
                self._refused[place] = there.look_at(name)
        except (UnsafeFileError, OSError):
            self._refused[place] = None


def _is_over(launch: _Launch) -> bool:
    """Also one that nobody here saw live, unless it is in a container: that one's record may stay for ever."""
    return launch.record.exit_status is not None and (
        launch.last is not None or launch.folder.run_dir.mount_namespaces is None
    )


def _summary(process: ProcessId, launch: _Launch) -> LaunchSummary:
    record = launch.record
    return LaunchSummary(
        process=process,
        uid=launch.uid,
        job_id=record.job_id,
        job_name=record.job_name,
        restarts=record.restarts,
        state=record.state,
        requeueable=record.requeueable,
        exempt=record.exempt,
        gpu_share=record.gpu_share,
        started_unix_s=record.started_unix_s,
        remarks=record.remarks,
        exit_status=record.exit_status,
        cancelled=record.cancelled,
    )
