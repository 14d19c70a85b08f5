"""Slurm jobs of this node's processes: asks ``listpids`` in a thread of its own, and remembers each answer for good.

Pids are reused, so an answer counts for a process only if it lived under this pid before the question and still
does after the answer. A process that is not listed itself belongs to its nearest listed ancestor's job: trackers
other than cgroups lose processes that begin their own session, as torchrun's workers do. Nobody can become the child
of another user's process, so that cannot be forged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidegauge.agent.ports import NoPlace, NoSteps, ProcSource, SourceHealth, StepSource
from tidegauge.agent.slurm.listpids import TIMEOUT_S, ListPids, StepList, find_scontrol, scontrol_environ
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.slurm import SlurmPlace

if TYPE_CHECKING:  # it needs pydantic, and `tidegauge run` judges without
    from tidegauge.settings import Settings

_log = logging.getLogger(__name__)

SOON_S = 1.0
"""Between two questions while there is a process without an answer."""
REFRESH_S = 10.0
"""Between two questions otherwise: containers are found by ``pids``, and a question costs 12 ms."""
PATIENCE_S = 10.0
"""How long a process waits for slurmd's answer: two questions that run into their time limit."""
UNDECIDED_S = 2.0
"""How long ranks wait at the start until it is known whether this is a Slurm node."""
NO_NODE_S = 60.0
"""Between two questions where ``scontrol`` knows no such node: a login node, or slurmd has no configuration yet."""


class SlurmNode:
    """The ``StepSource`` of a node with ``scontrol``. Thread-safe; ``start`` begins the thread that asks.

    ``required``: a setting says that this is a Slurm node; otherwise it is one from the first answer on.
    """

    def __init__(
        self,
        ask: Callable[[], StepList],
        procs: ProcSource,
        *,
        required: bool,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._procs = procs
        self._monotonic_s = monotonic_s
        self._made_s = monotonic_s()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._is_node: bool | None = True if required else None
        """``None`` before the first answer."""
        self._waiting: dict[ProcessId, float] = {}
        """Processes without a place, and the time of the first question for each."""
        self._outside: set[ProcessId] = set()
        """Waiting processes that slurmd does not know."""
        self._places: dict[ProcessId, SlurmPlace] = {}
        self._pids: frozenset[int] = frozenset()
        self._asking_since_s: float | None = None
        self._ended_s: float | None = None
        self._success = True
        self._duration_s = 0.0

    def place_of(self, process: ProcessId) -> SlurmPlace | NoPlace:
        now_s = self._monotonic_s()
        with self._lock:
            if self._is_node is False or (self._is_node is None and now_s - self._made_s > UNDECIDED_S):
                return NoPlace.NOT_ASKED
            place = self._places.get(process)
            if place is not None:
                return place
            if process not in self._waiting:
                self._waiting[process] = now_s
                self._wake.set()
            if process in self._outside:
                return NoPlace.OUTSIDE
            return NoPlace.WAITING if now_s - self._waiting[process] <= PATIENCE_S else NoPlace.SILENT

    def pids(self) -> frozenset[int] | None:
        return None if self._is_node is False else self._pids

    def health(self) -> SourceHealth | None:
        now_s = self._monotonic_s()
        with self._lock:
            hangs = self._asking_since_s is not None and now_s - self._asking_since_s > 2 * TIMEOUT_S
            if not self._is_node or (self._ended_s is None and not hangs):
                return None
            return SourceHealth(self._success and not hangs, self._duration_s)

    def start(self) -> None:
        """Begin to ask, in a daemon thread. Once."""
        assert self._thread is None, "a SlurmNode starts once"
        self._thread = threading.Thread(target=self._run, name="tidegauge-slurm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread after the question that is under way, for which it does not wait."""
        self._closed = True
        self._wake.set()

    def due_s(self) -> float:
        """Time of the next ``look``, on the monotonic clock."""
        now_s = self._monotonic_s()
        with self._lock:
            if self._ended_s is None:
                return now_s
            if self._is_node is False:
                return self._ended_s + NO_NODE_S
            soon = any(
                now_s - since_s <= PATIENCE_S
                for process, since_s in self._waiting.items()
                if process not in self._outside
            )
            return self._ended_s + (SOON_S if soon else REFRESH_S)

    def look(self) -> None:
        """Ask once, and take the answer. Blocks until it comes."""
        with self._lock:
            self._asking_since_s = began_s = self._monotonic_s()
            waiting, placed = list(self._waiting), list(self._places)
        chains = {process: self._chain(process) for process in waiting}
        said = self._ask()
        places: dict[ProcessId, SlurmPlace] = {}
        outside: set[ProcessId] = set()
        for process, chain in chains.items():
            found = self._place_in(chain, said)
            if isinstance(found, SlurmPlace):
                places[process] = found
            elif found is NoPlace.OUTSIDE:
                outside.add(process)
        gone = [process for process in (*waiting, *placed) if self._lives(process) is False]
        with self._lock:
            self._places.update(places)
            self._outside = (self._outside | outside) - places.keys()
            for process in (*places, *gone):
                self._waiting.pop(process, None)
            for process in gone:
                self._places.pop(process, None)
                self._outside.discard(process)
            if said.problem is None or said.places:
                self._pids = frozenset(said.places)
            self._hear(said)
            self._asking_since_s, self._ended_s = None, self._monotonic_s()
            self._duration_s = self._ended_s - began_s

    def _hear(self, said: StepList) -> None:
        """Note whether slurmd answers, and log changes."""
        success = said.problem is None
        if not self._is_node:
            if success or said.places:
                _log.info("slurmd reports which job the processes of this node belong to")
                self._is_node = True
            elif self._is_node is None:
                _log.info(
                    "this does not seem to be a Slurm node; checking again every %g s: %s", NO_NODE_S, said.problem
                )
                self._is_node = False
        elif self._success and not success:
            _log.warning(
                "slurmd does not report which job processes belong to; new ranks wait for it: %s", said.problem
            )
        elif success and not self._success:
            _log.info("slurmd reports again which job processes belong to")
        self._success = success

    def _chain(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """A living process and its ancestors; empty if it has ended or its state is unknown.

        A parent is older than its child: a younger one took the pid of a parent that ended while we looked.
        """
        try:
            if self._procs.usage(process) is None:
                return ()
            chain = [process]
            for ancestor in self._procs.ancestors(process):
                if ancestor.start_ticks > chain[-1].start_ticks:
                    break
                chain.append(ancestor)
        except OSError:
            return ()
        return tuple(chain)

    def _place_in(self, chain: Sequence[ProcessId], said: StepList) -> SlurmPlace | NoPlace:
        """The place of the first of ``chain`` by ``said``; ``WAITING``: unknown, this time."""
        if not chain or not self._lives(chain[0]):
            return NoPlace.WAITING
        own = said.places.get(chain[0].pid)
        if own is not None:
            return own
        if said.problem is not None:
            return NoPlace.WAITING  # its own step may be among those that did not answer
        listed = next((each for each in chain if each.pid in said.places), None)
        if listed is None:
            return NoPlace.OUTSIDE
        return said.places[listed.pid] if self._lives(listed) else NoPlace.WAITING

    def _lives(self, process: ProcessId) -> bool | None:
        """Whether the process still lives; ``None``: unknown now."""
        try:
            return self._procs.usage(process) is not None
        except OSError:
            return None

    def _run(self) -> None:
        while not self._closed:
            left_s = self.due_s() - self._monotonic_s()
            if left_s > 0:
                self._wake.wait(left_s)
                self._wake.clear()
                continue
            try:
                self.look()
            except Exception:
                if self._success:
                    _log.exception("internal error in querying slurmd; retrying later")
                with self._lock:
                    self._asking_since_s, self._ended_s, self._success = None, self._monotonic_s(), False


def open_slurm(settings: Settings, procs: ProcSource, environ: Mapping[str, str]) -> StepSource:
    """The slurmd of this node, asked from now on; ``NoSteps`` where Slurm is switched off or, by itself, not found."""
    scontrol = None if settings.slurm == "off" else find_scontrol(settings, environ)
    if scontrol is None and settings.slurm != "on":
        return NoSteps()
    node = SlurmNode(
        ListPids(scontrol or "scontrol", scontrol_environ(settings, environ)),
        procs,
        required=settings.slurm == "on",
    )
    node.start()
    return node
