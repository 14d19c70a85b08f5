"""The mapped ranges of expandable segments, as a snapshot lists them: each contiguous one is a segment.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from tidegauge.core.allocator.trace import KnownSegment


class MappedRanges:
    """The ranges that are mapped now. Addresses never change their stream and pool: they were reserved for them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, KnownSegment] = {}
        self._kinds: dict[tuple[int, tuple[int, int]], list[tuple[int, bool]]] = {}

    def segments(self) -> list[KnownSegment]:
        """All ranges by address, without blocks."""
        return [self._ranges[start] for start in self._starts]

    def add(self, segment: KnownSegment, *, kind_is_known: bool) -> bool:
        """Map a range; false, and nothing done, where some of it is mapped already.

        It joins what is beside it of the same stream and pool. Where it is not known whether the range is of the small
        or the large pool, the nearest known one of its stream and pool tells: a reservation is larger than the device.
        """
        start, end = segment.address, segment.address + segment.total_bytes
        after = bisect_left(self._starts, start)
        if (after < len(self._starts) and self._starts[after] < end) or (after and self._end(after - 1) > start):
            return False
        is_large = segment.is_large if kind_is_known else self._kind_near(segment)
        joined = segment._replace(is_large=is_large, blocks=())
        self._remember(joined)
        for neighbour in [self._ranges[beside] for beside in self._starts[max(after - 1, 0) : after + 1]]:
            same = (neighbour.stream, neighbour.pool, neighbour.is_large) == (joined.stream, joined.pool, is_large)
            if same and self._touch(neighbour, joined):
                self._drop(neighbour.address)
                joined = joined._replace(
                    address=min(joined.address, neighbour.address),
                    total_bytes=joined.total_bytes + neighbour.total_bytes,
                )
        self._put(joined)
        return True

    def remove(self, address: int, size_bytes: int) -> bool:
        """Unmap a range; false, and nothing done, where not all of it is mapped as one."""
        place = bisect_right(self._starts, address) - 1
        end = address + size_bytes
        if place < 0 or self._end(place) < end or size_bytes == 0:
            return False
        whole = self._ranges[self._starts[place]]
        self._drop(whole.address)
        if whole.address < address:
            self._put(whole._replace(total_bytes=address - whole.address))
        rest_bytes = whole.address + whole.total_bytes - end
        if rest_bytes:
            self._put(whole._replace(address=end, total_bytes=rest_bytes))
        self._remember(whole._replace(address=address))
        return True

    @staticmethod
    def _touch(first: KnownSegment, second: KnownSegment) -> bool:
        return (
            first.address + first.total_bytes == second.address or second.address + second.total_bytes == first.address
        )

    def _end(self, place: int) -> int:
        known = self._ranges[self._starts[place]]
        return known.address + known.total_bytes

    def _put(self, segment: KnownSegment) -> None:
        insort(self._starts, segment.address)
        self._ranges[segment.address] = segment

    def _drop(self, start: int) -> None:
        del self._starts[bisect_left(self._starts, start)]
        del self._ranges[start]

    def _remember(self, segment: KnownSegment) -> None:
        kinds = self._kinds.setdefault((segment.stream, segment.pool), [])
        known = (segment.address, segment.is_large)
        place = bisect_left(kinds, known)
        if place == len(kinds) or kinds[place] != known:
            kinds.insert(place, known)

    def _kind_near(self, segment: KnownSegment) -> bool:
        kinds = self._kinds.get((segment.stream, segment.pool), [])
        if not kinds:
            return segment.is_large
        place = bisect_left(kinds, (segment.address, False))
        near = kinds[max(place - 1, 0) : place + 1]
        return min(near, key=lambda known: abs(known[0] - segment.address))[1]
