"""Exports bytes by stack for flame graphs: as folded stacks, and in speedscope's file format.

Names come from the job and are never trusted: nothing of them can end a frame, a line or a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tidegauge.analysis.snapshots.live_stacks import StackWeight
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.text import one_line

NO_STACK = "(no stack recorded)"
MAX_NAME_CHARS = 400
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_EXPORTER = "tidegauge"


def folded(weights: Iterable[StackWeight]) -> Iterator[str]:
    """A line a stack, outermost frame first: ``<module> (train.py:41);step (train.py:17) 1048576``, in bytes.

    For ``flamegraph.pl``, inferno, speedscope and whatever else reads Brendan Gregg's form.
    """
    sums: dict[str, int] = {}
    for one in weights:
        if one.weight_bytes > 0:
            # ";" ends a frame there.
            frames = ";".join(frame_name(frame).replace(";", ":") for frame in reversed(one.stack)) or NO_STACK
            sums[frames] = sums.get(frames, 0) + one.weight_bytes
    for frames, weight_bytes in sums.items():
        yield f"{frames} {weight_bytes}"


def speedscope(weights: Iterable[StackWeight], *, name: str, title: str) -> str:
    """A file of https://www.speedscope.app: ``name`` is the file's, ``title`` says what its bytes are."""
    frames: dict[CodeLine, int] = {}
    no_stack = (CodeLine("", 0, NO_STACK),)
    kept = [one for one in weights if one.weight_bytes > 0]
    samples = [[frames.setdefault(frame, len(frames)) for frame in reversed(one.stack or no_stack)] for one in kept]
    whole = {
        "$schema": _SCHEMA,
        "exporter": _EXPORTER,
        "name": one_line(name, MAX_NAME_CHARS),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": title,
                "unit": "bytes",
                "startValue": 0,
                "endValue": sum(one.weight_bytes for one in kept),
                "samples": samples,
                "weights": [one.weight_bytes for one in kept],
            }
        ],
    }
    return json.dumps(whole)


def frame_name(frame: CodeLine) -> str:
    """ "step (train.py:17)", in one printable line."""
    place = f" ({frame.filename}:{frame.line})" if frame.filename else ""
    return one_line(f"{frame.function[:MAX_NAME_CHARS]}{place}", 2 * MAX_NAME_CHARS)


def _frame(frame: CodeLine) -> dict[str, object]:
    named: dict[str, object] = {"name": one_line(frame.function, MAX_NAME_CHARS)}
    if frame.filename:
        named["file"] = one_line(frame.filename, MAX_NAME_CHARS)
    if frame.line > 0:
        named["line"] = frame.line
    return named
