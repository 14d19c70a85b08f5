"""Converts one device's list in a snapshot's ``device_traces`` into columns."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NoReturn, Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.fields import LARGEST, mapping, pool_id, text, whole
from tidegauge.analysis.snapshots.stack_table import StackTable
from tidegauge.core.allocator.trace import Action, Trace
from tidegauge.core.snapshot_columns import MAX_TEXT_CHARS

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


_CODES = {action.name.lower(): int(action) for action in Action}
_MAX_POOLS = 1 << 16
MAX_WORDS = 60_000
"""Different ``user_metadata`` that are kept."""
_MAX_UNKNOWN_NAMES = 10
_SOME_DEVICE = -1
CLOCK_TOLERANCE_US = 1_000
"""Entries are made under the device's lock, so their clock goes forward; that much is left to its conversion."""


class EventsReader:
    """Converts a list of entries into columns, all at once or while it grows.

    Entries are taken out of the list and emptied as they are read: a million of them is memory.
    """

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        self.keys: Optional[frozenset[str]] = None
        """The keys of the first entry, which tell the torch version."""
        self._has_clock = self._has_pools = self._has_metadata = False
        self._action = array("B")
        self._address = array("Q")
        self._size_bytes = array("Q")
        self._stream = array("q")
        self._time_us = array("q")
        self._pool = array("H")
        self._stack = array("i")
        self._metadata = array("i")
        self._pools: dict[tuple[int, int], int] = {(0, 0): 0}
        self._words: dict[str, int] = {}
        self._skipped: dict[str, int] = {}
        self._clock_us = 0
        self._read = 0
        self._wrong: Optional[object] = None
        """The first entry that cannot be: told when it is known which device it is of."""

    def take(self, entries: list[Any]) -> None:
        """Read all of ``entries`` and empty the list. Nothing is read any more after one that cannot be."""
        if self.keys is None and entries:
            self._first(entries[0])
        for entry in entries:
            if self._wrong is None:
                try:
                    self._add(_SOME_DEVICE, entry)
                except BadTraceError:
                    self._wrong = entry
                    continue
                self._read += 1
                # What a pickle has shared stays in its memo: at least what is in the dict goes.
                entry.clear()
        entries.clear()

    def events(self, device: int) -> Trace:
        """The columns read, and no other facts of the device. Raises ``BadTraceError`` with device and index.

        Entries with an action that is not known are left out and counted.
        """
        if self._wrong is not None:
            self._add(device, self._wrong)
        streams, stream = indexed(self._stream)
        return Trace(
            action=self._action,
            address=self._address,
            size_bytes=self._size_bytes,
            stream=stream,
            time_us=self._time_us if self._has_clock else array("q"),
            pool=self._pool if self._has_pools else array("H"),
            stack=self._stack if any(number >= 0 for number in self._stack) else array("i"),
            streams=streams,
            pools=tuple(self._pools),
            skipped=self._skipped,
            metadata=self._metadata if self._words else array("i"),
            words=tuple(self._words),
        )

    def _first(self, entry: object) -> None:
        self.keys = frozenset(key for key in entry if isinstance(key, str)) if isinstance(entry, dict) else frozenset()
        self._has_clock, self._has_pools = "time_us" in self.keys, "pool_id" in self.keys
        self._has_metadata = "user_metadata" in self.keys

    def _add(self, device: int, entry: Any) -> None:
        """Append one entry. Only one that looks wrong is checked field by field, to say what is wrong."""
        try:
            action = _CODES[entry["action"]]
            address = entry["device_free" if action == Action.OOM else "addr"]
            size_bytes, stream = entry["size"], entry["stream"]
            clock_us = entry["time_us"] if self._has_clock else 0
            pool = self._pools[entry["pool_id"]] if self._has_pools else 0
            # One comparison for all: an OR is negative or too large exactly if one of them is, and of numbers only.
            taken = 0 <= address | size_bytes | stream | clock_us < LARGEST
        except (KeyError, TypeError):
            taken = False
        if not taken:
            fields = self._checked(self._place(device), entry)
            if fields is None:
                return
            action, address, size_bytes, stream, clock_us, pool = fields
        if clock_us < self._clock_us - CLOCK_TOLERANCE_US:
            _clock_went_back(self._place(device), self._clock_us, clock_us)
        self._clock_us = clock_us
        self._action.append(action)
        self._address.append(address)
        self._size_bytes.append(size_bytes)
        self._stream.append(stream)
        self._time_us.append(clock_us)
        self._pool.append(pool)
        frames = entry.get("frames")
        number = None if frames is None else self._stacks.number(frames, self._place(device))
        self._stack.append(-1 if number is None else number)
        if self._has_metadata:
            self._metadata.append(self._word_number(entry.get("user_metadata")))

    def _word_number(self, word: object) -> int:
        """-1 for no word, and for one that is beyond the bound."""
        if not isinstance(word, str) or not word:
            return -1
        number = self._words.get(word)
        if number is None and len(self._words) < MAX_WORDS:
            number = self._words[word[:MAX_TEXT_CHARS]] = len(self._words)
        return -1 if number is None else number

    def _checked(self, place: str, entry: Any) -> Optional[tuple[int, int, int, int, int, int]]:
        """The entry's fields; ``None`` where its action is unknown, which is counted."""
        fields = mapping(entry, place)
        name = text(fields, "action", place)
        action = _CODES.get(name)
        if action is None:
            self._skip(name)
            return None
        return (
            action,
            whole(fields, "device_free" if action == Action.OOM else "addr", place),
            whole(fields, "size", place),
            whole(fields, "stream", place),
            whole(fields, "time_us", place) if self._has_clock else 0,
            self._pool_number(fields, place),
        )

    def _pool_number(self, fields: Mapping[str, Any], place: str) -> int:
        if not self._has_pools:
            return 0
        pool = pool_id(fields, "pool_id", place)
        if pool is None:
            raise BadTraceError(f"{place}: 'pool_id' is missing, which the first entry has")
        if len(self._pools) == _MAX_POOLS:
            raise BadTraceError(f"{place}: more than {_MAX_POOLS:,} different pools")
        return self._pools.setdefault(pool, len(self._pools))

    def _skip(self, name: str) -> None:
        reason = f"events of the unknown kind {shown(name)}"
        if reason not in self._skipped and len(self._skipped) >= _MAX_UNKNOWN_NAMES:
            reason = "events of further unknown kinds"
        self._skipped[reason] = self._skipped.get(reason, 0) + 1

    def _place(self, device: int) -> str:
        return f"device_traces[{device}][{self._read}]"


def check_clock(time_us: Sequence[int], device: int) -> None:
    """Raises ``BadTraceError`` where the events of a device are not in order."""
    for index, (before_us, after_us) in enumerate(zip(time_us, islice(time_us, 1, None)), start=1):
        if after_us < before_us - CLOCK_TOLERANCE_US:
            _clock_went_back(f"event {index:,} of device {device}", before_us, after_us)


def _clock_went_back(place: str, before_us: int, after_us: int) -> NoReturn:
    raise BadTraceError(
        f"{place}: its clock is {(before_us - after_us) / 1e6:,.3f} s before the entry above it, so the entries are "
        "not in order and nothing can be replayed. PyTorch leaves such a history when recording is started again with "
        "a smaller max_entries; start it with clear_history=True"
    )
