"""The probe's allocation history, in a process whose job may start its own at any time: the probe's then yields.

Constraints of torch's ``_record_memory_history``: asking whether it is on crashes before CUDA is initialised, switching
it off clears its ring, and switching it on again with other parameters spoils the order of a recording in
progress. So this module never touches a recording that it did not begin. While ours is on, a wrapper replaces torch's
native call: when the job calls it, ours is off and its ring is cleared before the job's call takes effect.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import Any, Optional

from tidegauge.probe.faults import Faults

MAX_ENTRIES = 100_000
"""Events in a ring of ours at most: some 30 MB with Python stacks."""
STACKS = ("python", "all", "none")
"""``all`` adds C++ frames: their names cost up to 0.3 s once, at the first snapshot."""
_SEATS = ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy")
"""Names in ``torch._C``. Torch's Python functions look them up at each call."""


class Recorder(str, Enum):
    """The owner of the allocation history in this process."""

    NOBODY = "none"
    OURS = "ours"
    JOB = "job's"


class History:
    """One process's history, on all its devices. Made once CUDA is initialised in this very process, never before."""

    def __init__(self, torch: Any, faults: Faults) -> None:
        self.entries: Optional[int] = None
        """Size of the ring on each device while ours is on."""
        self.stacks: Optional[str] = None
        self.began_step: Optional[int] = None
        """The step at which our recording began, while one is on."""
        self.taken_over = False
        """Whether the job called torch's recorder while ours was on, so that ours ended."""
        self._native = torch._C
        self._record = torch.cuda.memory._record_memory_history  # it knows what this release's native call takes
        self._faults = faults
        self._lock = threading.RLock()  # a signal handler of the job's may call torch's recorder within our own call
        self._seats: dict[str, tuple[Any, Any]] = {}

    def recorder(self) -> Recorder:
        with self._lock:
            if self.entries is not None:
                return Recorder.OURS
            return Recorder.JOB if self._native._cuda_isHistoryEnabled() else Recorder.NOBODY

    def begin(self, *, entries: int, stacks: str = "python", step: int) -> bool:
        """Record from now on, unless a recording is on; whether it began. ``stacks``: one of ``STACKS``."""
        with self._lock:
            if self.recorder() is not Recorder.NOBODY:
                return False
            self._take_seats()
            try:
                with_stacks = {"context": "alloc", "stacks": stacks} if stacks != "none" else {"context": None}
                self._record(enabled="all", max_entries=entries, **with_stacks)
            except BaseException:
                self._leave_seats()
                raise
            self.entries, self.stacks, self.began_step, self.taken_over = entries, stacks, step, False
            return True

    def end(self) -> None:
        """End our recording, if one is on. Stacks of live blocks stay; the events are gone."""
        with self._lock:
            if self.entries is None:
                return
            self.entries = self.stacks = self.began_step = None
            try:
                self._record(enabled=None)
            finally:
                self._leave_seats()

    def forget(self) -> None:
        """Give the job torch's calls back in a forked child, where CUDA cannot be used and nothing is called."""
        self._lock = threading.RLock()  # the old one may be held by a thread that does not exist here
        self.entries = self.stacks = self.began_step = None
        self._leave_seats()

    def _take_seats(self) -> None:
        for name in _SEATS:
            original = getattr(self._native, name, None)
            if original is not None:
                stand_in = self._stand_in(name, original)
                self._seats[name] = (stand_in, original)
                setattr(self._native, name, stand_in)

    def _leave_seats(self) -> None:
        for name, (stand_in, original) in self._seats.items():
            if getattr(self._native, name) is stand_in:  # else somebody wrapped it: theirs stays, ours lets through
                setattr(self._native, name, original)
        self._seats.clear()

    def _stand_in(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            self._give_way()
            return original(*args, **kwargs)

        stand_in.__name__ = stand_in.__qualname__ = name
        stand_in.__doc__ = original.__doc__
        return stand_in

    def _give_way(self) -> None:
        try:
            with self._lock:
                if self.entries is not None:  # not so while torch is called by us
                    self.taken_over = True
                    self.end()
        except Exception as error:
            self._faults.caught("giving way to the job's recording", error)
