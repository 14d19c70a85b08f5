"""Reads a recorded trace of any format, which its content tells, not its file name."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots import reading as snapshots
from tidegauge.analysis.snapshots.traces import memory_events
from tidegauge.analysis.traces.npz_traces import read_npz_trace
from tidegauge.analysis.traces.state_before import with_start
from tidegauge.analysis.untrusted_files import MAX_CONTENT_BYTES, read_content
from tidegauge.core.allocator.results import AddressMismatch, FollowedTies
from tidegauge.core.allocator.settings import TieBreak, parse_settings
from tidegauge.core.allocator.trace import Action, KnownSegment, Trace, TraceError

# In which order the segments that lived before a trace's first event were made, as far as the trace betrays it.
# From torch 2.13 on, the older segment wins among equally large free blocks. A ring that has lost its beginning does
# not say which is older; but each time the recording took a block of one segment where the model took one of another,
# it did.

FIRST_WINDOW = 2_000
"""Events that are replayed at first; twice as many each time all of them come back."""
MAX_EVENTS = 20_000_000
MAX_EVENTS_UNCOMPILED = 500_000
"""Replayed in all, some ten seconds: the search ends there, with what it has found."""
MAX_REPLAYS = 1_000


def with_segment_order(trace: Trace) -> Trace:
    """The trace with ``start`` in an order under which its addresses come back, or as many of them as that can do.

    ``start`` is in order of age: the model gives the first one the lowest counter. A trace that is complete, or whose
    torch does not go by age, is returned as it is. Raises ``ValueError`` as a replay does.
    """
    settings = parse_settings(trace.alloc_conf, trace.torch_version)
    if settings.tie_break is not TieBreak.SEGMENT or len(trace.start) < 2:
        return trace
    from tidegauge.core.allocator.compiled import IS_COMPILED  # only now is it known whether compiling is worth it
    from tidegauge.core.allocator.replay import followed_ties

    order = _Order(trace.start)
    most = MAX_EVENTS if IS_COMPILED else MAX_EVENTS_UNCOMPILED
    length, replayed = min(FIRST_WINDOW, len(trace)), 0
    for _ in range(MAX_REPLAYS):
        followed = followed_ties(replace(trace.first(length), start=order.segments()))
        betrayed = _betrayed(followed)
        replayed += length
        if replayed >= most or (not betrayed and length == len(trace)):
            break
        helped = [order.is_older(one.recorded, one.replayed) for one in betrayed]
        if not betrayed:
            length = min(2 * length, len(trace))
        elif not any(helped):
            break
    return replace(trace, start=order.segments())


def _betrayed(followed: FollowedTies) -> Sequence[AddressMismatch]:
    """What tells of two segments which one is older. Behind the first mismatch the model goes ways of its own."""
    ties, mismatch = followed
    if mismatch is None:
        return ties
    return [one for one in ties if one.event < mismatch.event] or ties[:1] or [mismatch]


class _Order:
    """An order of segments by age that agrees with what is known of it so far."""

    def __init__(self, segments: Sequence[KnownSegment]) -> None:
        self._by_address = sorted(segments)
        self._starts = [segment.address for segment in self._by_address]
        self._order = list(range(len(self._by_address)))
        self._older: dict[int, set[int]] = {}
        """Of each segment, those that are known to be older."""

    def segments(self) -> tuple[KnownSegment, ...]:
        return tuple(self._by_address[place] for place in self._order)

    def is_older(self, first_address: int, second_address: int) -> bool:
        """Take note that the segment of the first address is older; false where that cannot be."""
        first, second = self._segment_of(first_address), self._segment_of(second_address)
        if first is None or second is None or first == second:
            return False
        if second in self._all_older(first) or first in self._all_older(second):
            return False  # it would contradict what is known, or was known and did not help
        self._older.setdefault(second, set()).add(first)
        # The older one, and what is known to be older still, moves in front of the younger one.
        moved = self._all_older(first) | {first}
        behind = self._order.index(second)
        before = [place for place in self._order[:behind] if place not in moved]
        in_front = [place for place in self._order if place in moved]
        after = [place for place in self._order[behind:] if place not in moved]
        self._order = before + in_front + after
        return True

    def _segment_of(self, address: int) -> Optional[int]:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        segment = self._by_address[place]
        return place if address < segment.address + segment.total_bytes else None

    def _all_older(self, place: int) -> set[int]:
        found: set[int] = set()
        ahead = [place]
        while ahead:
            new = self._older.get(ahead.pop(), set()) - found
            found |= new
            ahead.extend(new)
        return found


# Which pool an event belongs to, for torch before 2.12, whose entries do not say it.
# Segments at the end name their pool, and from its ``segment_alloc`` on a segment's addresses are its own. Pools whose
# segments are all gone at the end cannot be told from the default one; their traffic is taken for its.

_DEFAULT = (0, 0)


def with_pools(trace: Trace) -> Trace:
    """The trace with ``pool`` filled, if it names none and has segments of other pools than the default one."""
    own = [segment for segment in trace.end or () if segment.pool != _DEFAULT]
    if trace.pool or not own:
        return trace
    pools = (_DEFAULT, *sorted({segment.pool for segment in own}))
    place = {pool: index for index, pool in enumerate(pools)}
    pool = array("H", bytes(2 * len(trace)))
    ranges = sorted(own)
    starts = [segment.address for segment in ranges]
    for event in range(len(trace) - 1, -1, -1):
        address = trace.address[event]
        inside = bisect_right(starts, address) - 1
        if inside < 0 or not _holds(ranges[inside], address) or trace.action[event] == Action.OOM:
            continue
        pool[event] = place[ranges[inside].pool]
        if trace.action[event] == Action.SEGMENT_ALLOC:
            del starts[inside], ranges[inside]
    return replace(trace, pool=pool, pools=pools)


def _holds(segment: KnownSegment, address: int) -> bool:
    return address < segment.address + segment.total_bytes


_ZIP_MAGIC = b"PK\x03\x04"


def with_beginning(trace: Trace) -> Trace:
    """``trace`` with the state before its first event. Raises ``BadTraceError`` and ``TraceError``."""
    return trace if trace.complete else with_segment_order(with_start(with_pools(trace)))


def open_trace(
    path: Path,
    *,
    device: Optional[int] = None,
    torch_version: Optional[str] = None,
    cap_bytes: Optional[int] = None,
    most_bytes: int = MAX_CONTENT_BYTES,
    on_read: Callable[[int], object] = int,
    beginning: Callable[[Trace], Trace] = with_beginning,
    on_choice: Optional[Callable[[str], object]] = None,
) -> Trace:
    """The trace of one device in a snapshot or an ``.npz``, gzip or not, with the state before its first event.

    ``torch_version`` and ``cap_bytes`` are what the caller knows better than the file. Without ``device``, the only
    one that has events; of several the one that holds most, if ``on_choice`` takes the sentence that says so.
    ``on_read`` gets the number of events before any is replayed; ``beginning`` finds the state before the first one.
    Raises ``BadTraceError`` that names the file, and says of which devices there is a choice.
    """
    try:
        with path.open("rb") as stream:
            content = read_content(stream, most_bytes=most_bytes)
        trace = _known_better(_read(content, device, most_bytes, on_choice), torch_version, cap_bytes)
        on_read(len(trace))
        return beginning(trace)
    except OSError as error:
        raise BadTraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except TraceError as error:
        raise BadTraceError(f"{path}: contradicts itself: {error}") from error
    except BadTraceError as error:
        raise type(error)(f"{path}: {error}") from error


def _read(
    content: bytes, device: Optional[int], most_bytes: int, on_choice: Optional[Callable[[str], object]]
) -> Trace:
    if content.startswith(_ZIP_MAGIC):
        trace = read_npz_trace(content, most_bytes=most_bytes)
        if device not in (None, trace.device):
            raise BadTraceError(
                f"is the trace of one device, which an .npz calls {trace.device}; there is no device {device}"
            )
        return trace
    return trace_of(snapshots.read_bytes(content), device, on_choice)


def trace_of(
    snapshot: snapshots.Snapshot, device: Optional[int], on_choice: Optional[Callable[[str], object]] = None
) -> Trace:
    """The history of one device in a snapshot, with what the probe knew of it; ``on_choice`` as in ``open_trace``.
    Raises ``BadTraceError``."""
    return _known_to_the_probe(_of_device(snapshot.traces, device, on_choice), snapshot.facts)


def _of_device(
    traces: Mapping[int, Trace], device: Optional[int], on_choice: Optional[Callable[[str], object]]
) -> Trace:
    events = {number: memory_events(trace) for number, trace in traces.items()}
    with_events = [number for number, count in events.items() if count]
    there = ", ".join(f"{number} ({events[number]:,} events)" for number in with_events)
    if device is None and len(with_events) == 1:
        return traces[with_events[0]]
    if not with_events:
        raise BadTraceError(
            "is a snapshot without a history: nothing to replay. Record one before the training steps: "
            'torch.cuda.memory._record_memory_history(context="alloc", stacks="python")'
        )
    if device is None and on_choice is not None:
        device = max(with_events, key=lambda number: _held_bytes(traces[number]))
        on_choice(f"has events of several devices: {there}; this is device {device}, which holds most")
    if device is None:
        raise BadTraceError(f"has events of several devices; choose one with --device: {there}")
    if device not in with_events:
        raise BadTraceError(f"has no events of device {device}; there are events of {there}")
    return traces[device]


def _held_bytes(trace: Trace) -> int:
    return sum(segment.total_bytes for segment in trace.end or ())


def _known_to_the_probe(trace: Trace, facts: Mapping[str, object]) -> Trace:
    """``trace`` with the facts that Tidegauge's probe wrote, where they are about this device."""
    version, cap = facts.get("torch_version"), facts.get("cap_bytes")
    if facts.get("device", trace.device) != trace.device:
        cap = None
    if version is not None and not isinstance(version, str):
        raise BadTraceError(f"{snapshots.OWN_KEY}: 'torch_version' should be a text, and is {shown(version)}")
    if cap is not None and (not isinstance(cap, int) or cap < 0):
        raise BadTraceError(f"{snapshots.OWN_KEY}: 'cap_bytes' should be a number of bytes, and is {shown(cap)}")
    return _known_better(trace, version, cap)


def _known_better(trace: Trace, torch_version: Optional[str], cap_bytes: Optional[int]) -> Trace:
    return replace(
        trace,
        torch_version=torch_version if torch_version is not None else trace.torch_version,
        cap_bytes=cap_bytes if cap_bytes is not None else trace.cap_bytes,
    )
