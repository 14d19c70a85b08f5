"""Sees to it that a node has an agent at work: a stand-in waits beside the engine, and takes the place when it is free.

For the supervisor: it imports nothing of the agent's. Who is at work is decided by the place's lock, not here: what is
needed here is one process that waits for it, and the end of a holder that is not at work.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path

from tidegauge.cluster.ray_service.agent_place import AgentKind, PlaceHolder, PlaceState, look_at_place
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.processes import send_signal, stat_of

log = logging.getLogger(__name__)

STOPPED_S = 2.0
"""An agent that was stopped (SIGSTOP) for this long is not at work. Somebody who debugs it traces it, which is another
state."""
SILENT_S = 60.0
"""One that gives no sign of life for so long neither. Long: a host under memory pressure stalls for many seconds."""
LATE_LOOK_S = 15.0
"""Where looks are further apart than this, this process itself was stopped: nothing is known of that time."""
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0
NEXT_SPARE_S = 2.0
"""From a take-over to the start of the next one that waits: its imports would take processor time from the first
pages."""


class AgentCare:
    """``look`` is to be called every second or so. ``start`` starts a process that waits for the place (the spare),
    takes it when it is free (then it is the stand-in), and ends by itself once it is asked to."""

    def __init__(
        self,
        place: Path,
        start: Callable[[], ProcessId],
        *,
        monotonic_s: Callable[[], float],
        look_at: Callable[[Path], PlaceState] = look_at_place,
        stat: Callable[[int], ProcStat | None] = stat_of,
        kill: Callable[[ProcessId, int], bool] = send_signal,
    ) -> None:
        self._place = place
        self._start = start
        self._monotonic_s = monotonic_s
        self._look_at = look_at
        self._stat = stat
        self._kill = kill
        self.spare: ProcessId | None = None
        self.stand_in: ProcessId | None = None
        """The last that was seen at work."""
        self._retry_s = FIRST_RETRY_S
        self._next_start_s = self._looked_s = self._started_s = float("-inf")
        self._was_held = False
        self._watched: tuple[ProcessId, int] | None = None
        self._beat_s = 0.0
        """When the holder last gave a sign of life."""
        self._stopped_since_s: dict[ProcessId, float] = {}

    def look(self) -> None:
        """Look once at who is at work and who waits. Raises ``OSError`` where no process can be started: the next look
        tries again."""
        now_s = self._monotonic_s()
        state = self._look_at(self._place)
        was_away, self._looked_s = now_s - self._looked_s > LATE_LOOK_S, now_s
        if state.is_held:
            if state.holder is not None:
                self._watch(state.holder, state.beat_ns, now_s, was_away=was_away)
        else:
            self._watched = None
            if self._was_held:
                self._next_start_s = now_s  # whatever failed before: now somebody is missed
        self._was_held = state.is_held
        self._keep_spare(state.holder if state.is_held else None, now_s, was_away=was_away)

    def _keep_spare(self, holder: PlaceHolder | None, now_s: float, *, was_away: bool) -> None:
        if self.spare is not None:
            if holder is not None and holder.process == self.spare:
                self.stand_in, self.spare, self._next_start_s = self.spare, None, now_s + NEXT_SPARE_S
            elif (stat := self._stat_of(self.spare)) is None or stat.ended:
                log.warning("the agent that waits beside the engine (pid %d) has ended", self.spare.pid)
                self.spare = None
            elif self._is_stopped(stat, now_s, was_away=was_away):
                self._end(self.spare, "the agent that waits beside the engine", "is stopped")
            elif now_s - self._started_s >= MAX_RETRY_S:
                self._retry_s = FIRST_RETRY_S
        if self.spare is None and now_s >= self._next_start_s:
            self._next_start_s, self._started_s = now_s + self._retry_s, now_s
            self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
            log.info("starting an agent that waits beside the engine")
            self.spare = self._start()

    def _watch(self, holder: PlaceHolder, beat_ns: int, now_s: float, *, was_away: bool) -> None:
        """End a holder that is not at work: then the place is free."""
        stat = self._stat_of(holder.process)
        if stat is None:
            return  # the next holder has not said yet who it is
        is_new = self._watched is None or self._watched[0] != holder.process
        if is_new or was_away or self._watched != (holder.process, beat_ns):
            self._beat_s = now_s
        self._watched = (holder.process, beat_ns)
        stopped = self._is_stopped(stat, now_s, was_away=was_away or is_new)
        if stopped or now_s - self._beat_s >= SILENT_S:
            what = "is stopped" if stopped else f"has not finished a poll for {SILENT_S:.0f} s"
            where = "the engine's agent" if holder.kind is AgentKind.ENGINE else "the agent beside the engine"
            self._end(holder.process, where, what)
            self._watched = None

    def _stat_of(self, process: ProcessId) -> ProcStat | None:
        stat = self._stat(process.pid)
        return stat if stat is not None and stat.process == process else None

    def _is_stopped(self, stat: ProcStat, now_s: float, *, was_away: bool) -> bool:
        """Whether it has been stopped all the time for ``STOPPED_S``."""
        if stat.state != "T" or was_away:
            self._stopped_since_s.pop(stat.process, None)
            return False
        return now_s - self._stopped_since_s.setdefault(stat.process, now_s) >= STOPPED_S

    def _end(self, process: ProcessId, where: str, what: str) -> None:
        log.warning("%s (pid %d) %s: killing it, so that another one can go on", where, process.pid, what)
        self._stopped_since_s.pop(process, None)
        self._kill(process, signal.SIGKILL)
