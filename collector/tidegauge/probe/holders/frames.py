"""Reads local variables of running functions, in any thread, without leaving anything behind.

Up to Python 3.12 ``frame.f_locals`` makes a dict that the frame keeps: it would keep its values alive until the
function returns. So it is emptied again unless somebody else has it. From 3.13 on it is a view (PEP 667). Nothing is
ever written to a frame. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import inspect
import sys
import threading
from types import FrameType
from typing import Any, NamedTuple, Optional

from tidegauge.probe.holders.looks import clean, is_own

MAX_FRAMES = 200
"""Of one thread, from the innermost on: a stack that is deeper is a recursion."""


class RunningFrame(NamedTuple):
    """A running function. Keeping one keeps its local variables alive: never beyond one look."""

    frame: FrameType
    thread: Optional[str]
    """Name of the thread; ``None``: it is the main one."""


def running_frames() -> list[RunningFrame]:
    """Running functions of all threads, outermost first, without the probe's own."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    found: list[RunningFrame] = []
    frame: Optional[FrameType]
    for ident, frame in sys._current_frames().items():
        name = None if ident == main else clean(str(names.get(ident, ident)))
        stack: list[RunningFrame] = []
        current: Optional[FrameType] = frame
        while current is not None and len(stack) < MAX_FRAMES:
            if not is_own(current.f_code.co_filename):
                stack.append(RunningFrame(current, name))
            current = current.f_back
        found += reversed(stack)
    # This function's own is among them: the cycle would keep all frames and their variables until garbage is collected.
    frame = current = None
    return found


def local_values(frame: FrameType) -> list[tuple[str, Any]]:
    """Names and values of a function's variables, those of its closure included. A module's are its globals: none."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module's or a class's body: the dict is the variables themselves
        return [] if frame.f_locals is frame.f_globals else list(frame.f_locals.items())
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.items())
    if frame.f_trace is not None:  # a debugger writes this dict back to the variables
        return []
    shown = frame.f_locals
    values = list(shown.items())
    if sys.getrefcount(shown) <= _ONLY_OURS:
        shown.clear()
    return values


def _references_to_a_dict_of_a_frame() -> int:
    """``sys.getrefcount`` of ``f_locals`` when only the frame, one variable and the call itself refer to it."""
    shown = sys._getframe().f_locals
    return sys.getrefcount(shown)


_ONLY_OURS = _references_to_a_dict_of_a_frame()
