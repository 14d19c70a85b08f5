"""The stream handles of a trace in the allocator's order, and each event's index among them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from tidegauge.analysis.bad_traces import BadTraceError

_MAX_STREAMS = 1 << 16
"""That an index of two bytes tells apart; a device has 65 of PyTorch's own."""


def indexed(handles: Sequence[int]) -> tuple[tuple[int, ...], array[int]]:
    """The different handles in ascending order, which is the best fit's, and the index of each event's."""
    streams = _in_order(handles)
    if len(streams) == 1:
        return streams, array("H", bytes(2 * len(handles)))
    place = {handle: index for index, handle in enumerate(streams)}
    return streams, array("H", map(place.__getitem__, handles))


def with_handles(
    streams: tuple[int, ...], stream: array[int], more: Iterable[int]
) -> tuple[tuple[int, ...], array[int]]:
    """The same in the allocator's order, with further handles that no event has."""
    together = _in_order((*streams, *more) if stream else tuple(more))
    if together == streams:
        return streams, stream
    number = {handle: index for index, handle in enumerate(together)}
    place = [number[handle] for handle in streams] if stream else []
    return together, array("H", map(place.__getitem__, stream))


def _in_order(handles: Iterable[int]) -> tuple[int, ...]:
    streams = tuple(sorted(set(handles))) or (0,)
    if len(streams) > _MAX_STREAMS or streams[0] < 0:
        raise BadTraceError(f"has {len(streams):,} different streams, the lowest {streams[0]}: no process has such")
    return streams
