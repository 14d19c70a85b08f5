"""Step boundaries of a loop that steps no optimizer: calls of its outermost modules.

Inference and hand-written updates call their model once a step, where no backward pass runs. Several modules may be
called in a step (a loss, the two models of a distillation), so the calls are grouped in rounds: the boundary is the
call of a module that was already called since the boundary before, which is the same one in every step.

The hook makes every module's call slower, so it is there only while something waits for a boundary. Keeps no object
alive.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Optional

from tidegauge.probe.faults import Faults
from tidegauge.probe.runtime.backend import Backend

MAX_MODULES = 1024
"""In one round; a program that calls new modules alone makes no rounds."""


class ModuleCalls:
    """Calls ``at_boundary`` in the thread that calls the model, while it is switched on."""

    def __init__(self, backend: Backend, at_boundary: Callable[[], None], faults: Faults) -> None:
        self.boundaries = 0
        """So far."""
        self._backend = backend
        self._at_boundary = at_boundary
        self._faults = faults
        self._lock = threading.RLock()  # a signal handler may end in here again
        self._remove: Optional[Callable[[], None]] = None
        self._thread: Optional[int] = None
        """Whose calls count."""
        self._has_boundary = False
        """Whether that thread had one."""
        self._round: dict[int, weakref.ref[object]] = {}
        """Modules called since the last boundary, by their addresses."""
        self._busy = False
        self._failed = False

    @property
    def on(self) -> bool:
        return self._remove is not None

    def switch_on(self) -> None:
        """Look at calls from now on, if this process is one where that can be done."""
        with self._lock:
            if self._remove is not None or self._failed:
                return
            self._thread, self._has_boundary = None, False
            try:
                self._remove = self._backend.on_module_call(self._called)
            except Exception as error:
                self._failed = True  # it would fail twice a second
                self._faults.caught("looking at modules", error)

    def switch_off(self) -> None:
        """Take the hook away."""
        with self._lock:
            remove, self._remove = self._remove, None
            self._round.clear()
            if remove is not None:
                remove()

    def abandon(self) -> None:
        """Likewise, in a forked child: the lock may be held by a thread that does not exist here."""
        self._lock = threading.RLock()
        self.switch_off()

    def _called(self, module: object) -> None:
        """An outermost module is called, outside of backward passes."""
        try:
            if self._remove is None or not self._is_of_the_thread() or self._busy:
                return
            self._busy = True
            try:
                if self._ends_round(module) and not self._backend.capturing():
                    self._boundary()
            finally:
                self._busy = False
        except Exception as error:
            self._faults.caught("the module hook", error)

    def _boundary(self) -> None:
        self._has_boundary = True
        self.boundaries += 1
        self._at_boundary()

    def _is_of_the_thread(self) -> bool:
        """One thread's calls count: the first one's that calls, and rather the main thread's. ``DataParallel`` calls
        replicas, new ones each time, in further threads."""
        thread = threading.get_ident()
        is_main = thread == threading.main_thread().ident
        if self._thread is None or (is_main and not self._has_boundary and self._thread != thread):
            self._thread = thread
            self._round.clear()
        return thread == self._thread

    def _ends_round(self, module: object) -> bool:
        known = self._round.get(id(module))
        is_known = known is not None and known() is module
        if is_known or len(self._round) >= MAX_MODULES:
            self._round.clear()
        self._round[id(module)] = weakref.ref(module)
        return is_known
