"""A table of a snapshot's stacks, each once: a million events have some hundred stacks."""

from __future__ import annotations

import re
from typing import Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.fields import mapping, text
from tidegauge.core.allocator.trace import Frame, Stack
from tidegauge.core.snapshot_columns import MAX_TEXT_CHARS

DEEPEST = 1_000
"""Frames of a stack that are kept, from its innermost on: Python's own recursion limit."""
_FORMATTED = re.compile(r'\s*File "(?P<filename>[^"\n]*)", line (?P<line>\d{1,9}), in (?P<name>[^\n]*)')
MAX_FRAMES = 5_000_000
"""In all different lists together. Lists that share frames could ask for any number of them in a small file."""


class StackTable:
    """Numbers the different stacks. The file's lists are shared objects, so most are known by identity."""

    def __init__(self) -> None:
        self._stacks: dict[Stack, int] = {}
        # The lists are kept, lest another one gets the address of one that is gone.
        self._lists: dict[int, tuple[int, object]] = {}
        self._frames: dict[int, tuple[Frame, object]] = {}
        self._seen = 0

    def number(self, frames: object, where: str) -> Optional[int]:
        """The number of a list of frames; ``None`` for an empty one. ``where`` is said in errors."""
        known = self._lists.get(id(frames))
        if known is not None:
            return known[0]
        if not isinstance(frames, list):
            raise BadTraceError(f"{where}: 'frames' should be a list, and is {shown(frames)}")
        if not frames:
            return None
        self._seen += min(len(frames), DEEPEST)
        if self._seen > MAX_FRAMES:
            raise BadTraceError(f"{where}: the stacks up to here have more than {MAX_FRAMES:,} frames")
        stack = tuple([self._frame(frame, where) for frame in frames[:DEEPEST]])
        number = self._stacks.setdefault(stack, len(self._stacks))
        self._lists[id(frames)] = (number, frames)
        return number

    def forward_number(self, lines: object) -> Optional[int]:
        """The number of a ``forward_frames``; ``None`` where it is no list of what ``traceback.format_stack`` says.

        It is the stack of the forward pass, for a block that an autograd node allocated in backward (torch 2.11 and
        later, in anomaly mode).
        """
        if not isinstance(lines, list) or len(lines) > DEEPEST or not all(isinstance(line, str) for line in lines):
            return None
        found = [_FORMATTED.match(line) for line in reversed(lines)]  # the innermost is the last there
        stack = tuple(Frame(one["name"], one["filename"], int(one["line"])) for one in found if one is not None)
        self._seen += len(stack)
        return self._stacks.setdefault(stack, len(self._stacks)) if stack and self._seen <= MAX_FRAMES else None

    def all(self) -> tuple[Stack, ...]:
        return tuple(self._stacks)

    def _frame(self, frame: object, where: str) -> Frame:
        known = self._frames.get(id(frame))
        if known is None:
            fields = mapping(frame, f"{where}: a frame")
            line = fields.get("line")
            if isinstance(line, bool) or not isinstance(line, int) or abs(line) >= 1 << 31:
                raise BadTraceError(f"{where}: a frame's 'line' should be a line number, and is {shown(line)}")
            name, filename = (text(fields, key, f"{where}: a frame") for key in ("name", "filename"))
            found = Frame(name[:MAX_TEXT_CHARS], filename[:MAX_TEXT_CHARS], line)
            known = self._frames[id(frame)] = (found, frame)
        return known[0]
