"""Runs a search in slices, each in the training thread at a step boundary.

torch's tensors and graphs must not be read while another thread's backward pass frees them, which it
does without the interpreter's lock: a read at the wrong moment can crash the process, and Python objects of tensors
that only C++ owns (torch before 2.10) may be emptied during use. At a step boundary no backward pass runs. So
all code that reads the job's objects is written as generators, which are driven from there for some milliseconds at a
time; the thread that wants the answer only waits. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any, NamedTuple, Optional, TypeVar

from tidegauge.probe.requests import RequestRefusedError
from tidegauge.probe.runtime.undisturbed import collector_held_off

SLICE_S = 0.008
"""At one boundary."""
SHARE_OF_STEP = 0.02
MAX_SLICE_S = 0.04
"""Where steps are long: this share of the time between two boundaries, and never more than this."""
PATIENCE_S = 30.0
"""Where steps are not known to be slow."""
LONG_S = 0.02
"""A long unit of work begins where as much is left of a slice, or in a slice of its own."""
LOOK_EVERY = 8
"""Units of work between two looks at the clock."""
_AUTOGRAD_FILES = ("/torch/autograd/graph.py", "/torch/autograd/__init__.py")
_BACKWARD_FUNCTIONS = ("_engine_run_backward", "backward", "grad")

T = TypeVar("T")
Work = Generator[bool, None, T]
"""Yields after each small unit of work; ``True``: the next unit is a long one, of some 10 ms."""
AtBoundary = Callable[[Callable[[], bool]], bool]
"""Runs a call in the training thread at its next step boundary and returns its result. Raises
``RequestRefusedError``: ``late`` and ``busy`` where a later boundary may do."""


class OutOfWorkError(Exception):
    """The search has used up its budget; the text is for people."""


class NoBoundaryError(Exception):
    """No step boundary is available for the search; the text is for people."""


class Budget(NamedTuple):
    """Limits of one search. A search goes on for as many steps as it takes, however long they are."""

    units: int
    """Of work: references followed, graph nodes walked."""
    most_s: float = math.inf
    """For one that somebody waits for."""
    patience_s: float = PATIENCE_S
    """Without a step boundary: the job makes no more steps."""
    step_s: float = 0.0
    """Duration of a step, as far as it is known, for the first slice."""


class Slices:
    """One search's slices. The waiting thread calls ``pause`` between two; its exceptions pass through."""

    def __init__(
        self,
        torch: Any,
        budget: Budget,
        *,
        pause: Callable[[], None],
        at_boundary: AtBoundary,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._torch = torch
        self._pause = pause
        self._at_boundary = at_boundary
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._budget = budget
        self._boundary_s: Optional[float] = None
        """When the last slice began."""
        self.objects = 0
        self.longest_slice_s = 0.0

    @property
    def took_s(self) -> float:
        """Seconds so far, waiting included."""
        return self._clock_s() - self._began_s

    def run(self, work: Work[None]) -> None:
        """Drive ``work`` to its end. Raises ``OutOfWorkError``, ``NoBoundaryError`` and what ``work`` raises."""
        refused: Optional[RequestRefusedError] = None
        raised: list[BaseException] = []
        over = False
        slicing = threading.Lock()

        def at_boundary() -> bool:
            with slicing:
                try:
                    return over or self._slice(work)
                except Exception as error:
                    raised.append(error.with_traceback(None))  # whose frames would keep the step's variables
                    return True

        try:
            while True:
                self._pause()
                self._check(refused)
                try:
                    done, refused = self._at_boundary(at_boundary), None
                except RequestRefusedError as error:
                    if error.kind not in ("late", "busy"):
                        raise NoBoundaryError(str(error)) from None
                    done, refused = False, error
                if raised:
                    raise raised[0]
                if done:
                    return
                if self.objects >= self._budget.units:
                    raise OutOfWorkError(f"not finished after {self.objects:,} references")
        finally:
            with slicing:  # a boundary that was given up may have come after all
                over = True
            raised.clear()

    def _check(self, refused: Optional[RequestRefusedError]) -> None:
        now_s = self._clock_s()
        waited_s = now_s - (self._began_s if self._boundary_s is None else self._boundary_s)
        is_over = now_s - self._began_s > self._budget.most_s
        if refused is not None and waited_s > self._budget.patience_s:
            raise NoBoundaryError(_never(refused))
        if is_over:
            if refused is not None and self._boundary_s is None:
                raise NoBoundaryError(_never(refused))
            raise OutOfWorkError(f"not finished after {self.took_s:.0f} s")

    def _slice(self, work: Work[None]) -> bool:
        """Do as much work as fits; whether that was all."""
        began_s = self._clock_s()
        step_s = self._budget.step_s if self._boundary_s is None else began_s - self._boundary_s
        self._boundary_s = began_s
        slice_s = min(max(SLICE_S, SHARE_OF_STEP * step_s), MAX_SLICE_S)
        try:
            done, units = do_some(self._torch, work, slice_s, self._clock_s)
            self.objects += units
            return done
        finally:
            self.longest_slice_s = max(self.longest_slice_s, self._clock_s() - began_s)


def do_some(
    torch: Any, work: Work[None], slice_s: float, clock_s: Callable[[], float] = time.perf_counter
) -> tuple[bool, int]:
    """Do as much of ``work`` as fits, in the training thread at a step boundary: whether that was all, and units done.
    Nothing while a backward pass runs. Raises what ``work`` raises."""
    if backward_runs(torch):
        return False, 0
    began_s, units = clock_s(), 0
    # In this thread, until the slice ends. What is made here must not set off a collection of all objects.
    with torch._C.DisableTorchFunctionSubclass(), collector_held_off():
        for is_long_next in work:
            units += 1
            if is_long_next or units % LOOK_EVERY == 0:
                left_s = slice_s - (clock_s() - began_s)
                if left_s <= (LONG_S if is_long_next else 0.0):
                    return False, units
    return True, units


def _never(refused: RequestRefusedError) -> str:
    return "no training step ended in the meantime" if refused.kind == "late" else str(refused)


def backward_runs(torch: Any) -> bool:
    """Whether this thread is inside a backward pass (an optimizer that is stepped in a hook), or another one is."""
    if torch._C._current_graph_task_id() != -1:
        return True
    return any(_is_in_backward(frame) for frame in sys._current_frames().values())


def _is_in_backward(frame: Optional[FrameType]) -> bool:
    while frame is not None:
        code = frame.f_code
        if code.co_name in _BACKWARD_FUNCTIONS and code.co_filename.endswith(_AUTOGRAD_FILES):
            return True
        frame = frame.f_back
    return False
