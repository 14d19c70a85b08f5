"""New rings: opens those that are not watched yet, and checks them against the kernel's facts about their processes.

For the search thread (``search``): rings lie in folders that anybody may write.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional

from tidegauge.agent.kubernetes.pods import NamespacesOfPods
from tidegauge.agent.ports import ProcessFacts, ProcSource
from tidegauge.agent.rings.discovery import RingFile, RingFinder, RingPlace
from tidegauge.agent.rings.reader import RingBlankError, RingReader, read_header
from tidegauge.agent.run_dirs.folders import NotNowError
from tidegauge.agent.tenant_time import TenantTime
from tidegauge.core.ids import ProcessId, RankIdentity
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.ring_layout import LayoutError
from tidegauge.rate_limited_log import FewLines

_log = logging.getLogger(__name__)

MAX_RANKS = 1024
"""Ranks of one node that are watched: each has an open file, and up to 20 series in every scrape. A thousand cost less
than a third of a core (docs/performance.md)."""
MAX_RANKS_PER_TENANT = 512
"""No tenant can take all the places of a node."""
ORPHAN_LOOKS_S = 15.0
"""How long the process of a ring is searched for: it may be in a container, where a search costs more."""
MAX_NEW_DEVICES_PER_TENANT_AND_LOOK = 256
"""In rings of living processes opened in one look: 64 of them cost 15 ms, and a node has eight GPUs."""
MAX_RINGS_S = 0.05
"""Processor time for a tenant and look, enough for some eighty new ranks."""
MAX_ORPHANS_READ_PER_LOOK = 4
"""Rings of ended processes that are read before they are deleted, to see whether they are still written to."""
SURELY_UNWRITTEN_S = 5.0
"""A living rank writes twice a second: an orphan whose records stay the same for this time has no writer."""


Wanted = Callable[[ProcessId, Optional[RankIdentity]], bool]
"""Whether a ring is to be watched, by its process and what it says of itself, as far as it does."""


class FoundRing(NamedTuple):
    """A ring of a living process."""

    ring: RingFile
    facts: ProcessFacts
    tenant: Tenant
    """Whom limits count it to."""
    reader: RingReader | None
    """``None``: there is no room for it, and it was not read."""
    user_name: str
    ancestors: tuple[ProcessId, ...]
    """Those that the process descends from, its parent first."""


@dataclass
class _Orphan:
    """A ring whose process was never seen alive: left over, or of a pid namespace that the agent cannot see into."""

    since_s: float
    mtime_ns: int
    """Probes touch their rings once a minute."""
    newest: tuple[int, ...] | None = None
    """Record numbers read after it had lingered; ``None``: not read yet."""
    read_s: float = 0.0


class RingSearch:
    """Finds new rings and deletes old ones. Not thread-safe."""

    def __init__(
        self,
        finder: RingFinder,
        procs: ProcSource,
        namespaces: NamespacesOfPods,
        *,
        linger_s: float,
        watched: Callable[[], Mapping[Tenant, int]],
        time: TenantTime,
        wanted: Wanted | None = None,
    ) -> None:
        """``watched``: the number of each tenant's watched ranks. ``time``: the limit for each tenant, with the
        finder. ``wanted``: other rings are left alone."""
        self._wanted = wanted
        self._finder = finder
        self._procs = procs
        self._namespaces = namespaces
        self._linger_s = linger_s
        self._watched = watched
        self._orphans: dict[RingPlace, _Orphan] = {}
        self._time = time
        self._devices: Counter[Tenant] = Counter()
        """In rings that were opened in this look, by tenant."""
        self._places: Counter[Tenant] = Counter()
        """Taken by ranks that are watched, or were found in this look."""
        self._orphans_left = 0
        self._removals: list[RingFile] = []
        self._lines = FewLines(_log)
        self._deferred: Counter[str] = Counter({"opened": 0, "orphans": 0})

    def look(self, now_s: float) -> list[FoundRing]:
        """Rings that are new, of living processes. ``now_s`` is a monotonic clock."""
        self._time.begin()
        self._devices.clear()
        self._places = Counter(self._watched())
        self._orphans_left = MAX_ORPHANS_READ_PER_LOOK
        removals, self._removals = self._removals, []
        for ring in removals:
            self.remove(ring, now_s)
        found = [one for ring in self._finder.new_rings(now_s) if (one := self._find(ring, now_s)) is not None]
        gone = [place for place in self._orphans if not self._finder.is_aside(place)]
        for place in gone:  # somebody else has deleted them
            del self._orphans[place]
        if len(self._orphans) > 4 * MAX_RANKS:
            self._orphans.clear()  # they are found again, with their time to linger begun anew
        return found

    @property
    def deferred(self) -> Mapping[str, int]:
        """How often work had to wait for a later look so far: new rings and their folders (``opened``), rings to delete
        (``orphans``)."""
        return {**self._deferred, "opened": self._deferred["opened"] + self._finder.folders_put_off}

    def forget(self, ring: RingFile) -> None:
        """Close ``ring``, which is not watched any more. If its file is still there, it will be found again."""
        self._finder.forget(ring)

    def set_aside(self, ring: RingFile) -> None:
        """Close ``ring`` as ``forget`` does; it is found again some seconds later."""
        self._finder.set_aside(ring)

    def remove(self, ring: RingFile, now_s: float) -> None:
        """Close ``ring`` and delete it, with all that lies beside it: its process has ended."""
        try:
            self._finder.remove(ring)
        except NotNowError:
            self._removals.append(ring)
        except OSError as error:
            text = "the ring of an ended rank cannot be deleted, %s: %s"
            self._lines.say(logging.INFO, text, ring.place, error, now_s=now_s)

    def give_up(self, ring: RingFile, error: Exception, now_s: float) -> None:
        """``ring`` could not be read: refuse it, so that it does not cost the others their turn."""
        if isinstance(error, LayoutError):
            self._finder.refuse(ring, error.reason, str(error), now_s=now_s)
        elif isinstance(error, OSError):
            self._finder.put_off(ring, "unreadable", str(error), now_s=now_s)
        else:
            self._lines.say(logging.ERROR, "internal error in reading %s", ring.place, now_s=now_s, exc_info=error)
            self._finder.refuse(ring, "unreadable", str(error), now_s=now_s)

    def _find(self, ring: RingFile, now_s: float) -> FoundRing | None:
        of_folder = ring.place.folder.tenant
        if not self._time.is_left(of_folder):
            self._put_off(ring)
            return None
        try:
            with self._time.spent_by(of_folder):
                return self._checked(ring, now_s)
        except RingBlankError:
            self._finder.postpone(ring, now_s=now_s)
        except Exception as error:
            self.give_up(ring, error, now_s)
        return None

    def _checked(self, ring: RingFile, now_s: float) -> FoundRing | None:
        # The process first: a ring costs its maker nothing, and its reader up to 15 ms.
        orphan = self._orphans.get(ring.place)
        # Searched for at first, and once more when its ring is about to be deleted.
        looked_enough = orphan is not None and (
            ORPHAN_LOOKS_S < now_s - orphan.since_s < self._linger_s
            or (orphan.newest is not None and now_s - orphan.read_s < 2 * ORPHAN_LOOKS_S)
        )
        namespaces = ring.place.run_dir.mount_namespaces
        facts = None if looked_enough else self._procs.find(ring.process, mount_namespaces=namespaces)
        if facts is None:
            self._keep_orphan(ring, now_s)
            return None
        if facts.uid != ring.uid:
            raise LayoutError("owner", f"process {ring.process.pid} belongs to uid {facts.uid}")
        self._orphans.pop(ring.place, None)
        tenant = self._namespaces.whose(facts.tenant)
        if self._places[tenant] >= MAX_RANKS_PER_TENANT or sum(self._places.values()) >= MAX_RANKS:
            return FoundRing(ring, facts, tenant, None, "", ())
        header, _ = read_header(ring.fd)
        claimed = ProcessId(header.pid, header.start_ticks)
        if claimed != ring.process:
            raise LayoutError("process", f"its header is of process {claimed.pid}, but its name of {ring.process.pid}")
        if self._devices[tenant] + header.device_count > MAX_NEW_DEVICES_PER_TENANT_AND_LOOK:
            self._put_off(ring)
            return None
        self._devices[tenant] += header.device_count
        reader = RingReader(ring.fd)
        if self._wanted is not None and not self._wanted(ring.process, reader.identity):
            self._finder.set_aside(ring)
            return None
        self._places[tenant] += 1
        ancestors = self._procs.ancestors(facts.process)
        return FoundRing(ring, facts, tenant, reader, self._procs.user_name(facts.uid), ancestors)

    def _put_off(self, ring: RingFile) -> None:
        self._deferred["opened"] += 1
        self._finder.forget(ring)  # it is found again at the next look

    def _keep_orphan(self, ring: RingFile, now_s: float) -> None:
        """Delete a ring whose process is gone, but not at once, and never one that is still written to."""
        orphan, mtime_ns = self._orphans.get(ring.place), ring.signature.mtime_ns
        if orphan is None or orphan.mtime_ns != mtime_ns:
            self._say_written(ring, orphan, now_s)
            self._orphans[ring.place] = _Orphan(now_s, mtime_ns)
        elif now_s - orphan.since_s >= self._linger_s:
            if ring.place.run_dir.mount_namespaces is not None:
                self._orphans[ring.place] = _Orphan(now_s, mtime_ns)  # not ours to clear (RunDir): search again
            elif self._is_unwritten(ring, orphan, now_s):
                del self._orphans[ring.place]
                self.remove(ring, now_s)
                return
        self._finder.set_aside(ring)

    def _is_unwritten(self, ring: RingFile, orphan: _Orphan, now_s: float) -> bool:
        """Whether its records are those of some seconds ago. Only a few rings are read at a look, the others later."""
        if orphan.newest is not None and now_s - orphan.read_s < SURELY_UNWRITTEN_S:
            return False
        if self._orphans_left <= 0:
            self._deferred["orphans"] += 1
            return False
        self._orphans_left -= 1
        newest = RingReader(ring.fd).newest_when_opened
        if newest == orphan.newest or not any(newest):
            return True
        if orphan.newest is not None:
            self._say_written(ring, orphan, now_s)
            orphan.since_s = now_s
        orphan.newest, orphan.read_s = newest, now_s
        return False

    def _say_written(self, ring: RingFile, orphan: _Orphan | None, now_s: float) -> None:
        if orphan is not None and ring.place.run_dir.mount_namespaces is None:
            text = "%s is being written, but its process is not visible from here"
            self._lines.say(logging.INFO, text, ring.place, now_s=now_s)
