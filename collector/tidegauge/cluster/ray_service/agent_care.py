"""Sees to it that a node has an agent at work: while the engine has none there, a stand-in takes the place.

For the supervisor: it imports nothing of the agent's, whose memory goes with the stand-in's process.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path

from tidegauge.cluster.ray_service.agent_place import AgentKind, PlaceHolder, PlaceState, look_at_place
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.processes import is_alive, send_signal, stat_of

log = logging.getLogger(__name__)

STOPPED_S = 2.0
"""An agent that was stopped (SIGSTOP) for this long is not at work. Somebody who debugs it traces it, which is another
state."""
SILENT_S = 60.0
"""One that gives no sign of life for so long neither. Long: a host under memory pressure stalls for many seconds."""
LATE_LOOK_S = 15.0
"""Where looks are further apart than this, this process itself was stopped: nothing is known of that time."""
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 30.0


class AgentCare:
    """``look`` is to be called every second or so. ``start`` starts a stand-in, which takes the place, and ends by
    itself once it is asked to or finds it taken."""

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
        self.stand_in: ProcessId | None = None
        """The last that was started."""
        self._retry_s = FIRST_RETRY_S
        self._next_start_s = float("-inf")
        self._looked_s = float("-inf")
        self._watched: tuple[ProcessId, int] | None = None
        self._beat_s = 0.0
        """When the holder last gave a sign of life."""
        self._stopped_since_s: float | None = None

    def look(self) -> None:
        """Look once at who is at work. An engine that runs starts an agent that died again, but on a busy machine that
        takes ten seconds and more: Ray is a large thing to import."""
        now_s = self._monotonic_s()
        state = self._look_at(self._place)
        if state.is_held:
            if state.holder is not None:
                self._watch(state.holder, state.beat_ns, now_s)
        else:
            self._watched = None
            if now_s >= self._next_start_s:
                self._start_one(now_s)
        self._looked_s = now_s

    def _start_one(self, now_s: float) -> None:
        if self.stand_in is not None and is_alive(self.stand_in):
            return  # it is about to take the place, or has just left it
        log.info("the engine has no agent at work on this node: starting one beside it")
        self.stand_in = self._start()
        self._next_start_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)

    def _watch(self, holder: PlaceHolder, beat_ns: int, now_s: float) -> None:
        """End a holder that is not at work: then the place is free."""
        stat = self._stat(holder.process.pid)
        if stat is None or stat.process != holder.process:
            return  # the next holder has not said yet who it is
        was_away = now_s - self._looked_s > LATE_LOOK_S
        is_new = self._watched is None or self._watched[0] != holder.process
        if is_new or was_away or self._watched != (holder.process, beat_ns):
            self._beat_s = now_s
            if not is_new:
                self._retry_s = FIRST_RETRY_S  # it works
        if is_new or was_away or stat.state != "T":
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        self._watched = (holder.process, beat_ns)
        stopped = self._stopped_since_s is not None and now_s - self._stopped_since_s >= STOPPED_S
        silent = now_s - self._beat_s >= SILENT_S
        if stopped or silent:
            what = "is stopped" if stopped else f"has not finished a poll for {SILENT_S:.0f} s"
            where = "the engine's agent" if holder.kind is AgentKind.ENGINE else "the agent beside the engine"
            log.warning("%s (pid %d) %s: killing it, so that another one can go on", where, holder.process.pid, what)
            self._kill(holder.process, signal.SIGKILL)
            self._watched = None
