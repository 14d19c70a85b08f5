"""A memory profile as bytes, to be sent and kept: ``core.wire``'s JSON with a version, compressed; and back.

What a profile tells of code comes from a job, so neither direction trusts it: ``pack_profile`` bounds what is kept,
``unpack_profile`` takes nothing that ``pack_profile`` would not have written.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidegauge.core import wire
from tidegauge.core.bounded import bounded
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import (
    FORMAT_VERSION,
    MAX_TIMELINE_POINTS,
    ProfileLine,
    ProfileMoment,
    StepProfile,
    Timeline,
)
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes

MAX_PACKED_BYTES = 300_000
"""Profiles of training steps have 3 to 10 KB."""
MAX_UNPACKED_BYTES = 4 << 20
MAX_LINES = 1000
"""The largest; those that are left out are summed up by category."""
SMALLER_LINES = CodeLine("smaller lines", 0, "all others")
"""Stands for the lines of one category that are left out."""
MAX_MEASURES = 32
_MIN_LINES = 10
_EARLIEST_EVENT = -1


def pack_profile(profile: StepProfile) -> bytes:
    """``profile`` in at most ``MAX_PACKED_BYTES``. Raises ``ValueError`` for figures that are out of range."""
    profile = bounded(profile, least=_EARLIEST_EVENT)
    most = MAX_LINES
    while True:
        packed = zlib.compress(wire.to_json(replace(profile, lines=_largest(profile.lines, most))), 9)
        if len(packed) <= MAX_PACKED_BYTES:
            return packed
        if most <= _MIN_LINES:
            size, limit = format_bytes(len(packed)), format_bytes(MAX_PACKED_BYTES)
            raise ValueError(f"the profile has {size}; the limit is {limit}")
        most //= 2


def unpack_profile(packed: bytes) -> StepProfile:
    """The profile that ``pack_profile`` wrote. Raises ``ValueError`` for anything else, and for another version."""
    if len(packed) > MAX_PACKED_BYTES:
        raise ValueError(f"a profile has at most {format_bytes(MAX_PACKED_BYTES)}")
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(packed, MAX_UNPACKED_BYTES)
        _check(decompressor.eof, f"it is cut short, or has more than {format_bytes(MAX_UNPACKED_BYTES)}")
        return _read(json.loads(content))
    except (zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"this is no memory profile: {one_line(str(error))}") from error


def _read(raw: object) -> StepProfile:
    version = raw.get("version") if isinstance(raw, Mapping) else None
    if version != FORMAT_VERSION:
        raise ValueError(f"this version of Tidegauge reads version {FORMAT_VERSION}, not {version!s:.40}")
    profile = bounded(wire.from_wire(StepProfile, raw), least=_EARLIEST_EVENT)
    _check(len(profile.lines) <= MAX_LINES + len(Category), "it has too many lines")
    _check_moment(profile.peak)
    _check_timeline(profile.timeline)
    if profile.advice is not None:
        _check(len(profile.advice.measures) <= MAX_MEASURES, "it has too many measures")
        _check(len(profile.advice.cards) <= MAX_MEASURES, "it has too many cards")
    rest = profile.peak.allocated_bytes - profile.peak.by_category.get(Category.ROUNDING, 0)
    _check(sum(line.held_bytes for line in profile.lines) == rest, "its lines do not add up to its peak")
    return profile


def _largest(lines: Sequence[ProfileLine], most: int) -> tuple[ProfileLine, ...]:
    """The first ``most`` lines, and one line for each category that has further ones."""
    others: dict[Category, list[ProfileLine]] = defaultdict(list)
    for line in lines[most:]:
        others[line.category].append(line)
    return (
        *lines[:most],
        *(
            ProfileLine(
                held_bytes=sum(line.held_bytes for line in left_out),
                blocks=sum(line.blocks for line in left_out),
                category=category,
                phase=left_out[0].phase,
                line=SMALLER_LINES,
                caller=None,
                before_bytes=sum(line.before_bytes or 0 for line in left_out),
            )
            for category, left_out in others.items()
        ),
    )


def _check_moment(moment: ProfileMoment) -> None:
    _check(min(moment.by_category.values(), default=0) >= 0, "a category has less than nothing")
    _check(sum(moment.by_category.values()) == moment.allocated_bytes, "its categories do not add up to its peak")


def _check_timeline(timeline: Timeline) -> None:
    points = len(timeline.events)
    _check(points <= MAX_TIMELINE_POINTS, "its timeline is too long")
    columns = (timeline.phases, *timeline.by_category.values())
    _check(all(len(column) == points for column in columns), "its timeline's columns differ in length")
    _check(list(timeline.events) == sorted(timeline.events), "its timeline goes backwards")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
