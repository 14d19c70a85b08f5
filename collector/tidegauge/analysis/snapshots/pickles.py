"""Reads PyTorch's memory snapshots: ``torch.cuda.memory._snapshot()``, pickled by ``_dump_snapshot`` or otherwise.

Schemas of torch 2.4 and later. A snapshot says neither its torch version, nor a cap, nor the device's size.

A history of millions of entries would be gigabytes of dicts. So entries become columns while the pickle is still being
read, each batch as it comes, and only then is it known which device they belong to.
"""

from __future__ import annotations

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.snapshots.events import EventsReader
from tidegauge.analysis.snapshots.fields import mapping, sequence
from tidegauge.analysis.snapshots.restricted_pickle import loads
from tidegauge.analysis.snapshots.segments import read_segments
from tidegauge.analysis.snapshots.stack_table import StackTable
from tidegauge.analysis.snapshots.traces import Snapshot, SnapshotParts, put_together
from tidegauge.core.allocator.trace import Trace

OWN_KEY = "tidegauge"
"""What Tidegauge's probe adds to a snapshot: a flat mapping that says what torch's own keys do not."""
FIRST_BYTES = (b"\x80", b"(", b"}")
"""Of a pickled dict: protocols 2 to 5, 0, 1."""
_MAX_DEVICES = 1_024
"""torch itself is compiled for 120 at most."""


def read_pickle(content: bytes) -> Snapshot:
    """The snapshot in a pickle. Raises ``BadTraceError``: what was expected, and where."""
    stacks = StackTable()
    histories = _Histories(stacks)
    whole = loads(content, on_grown=histories.take)
    if not isinstance(whole, dict) or "segments" not in whole:
        raise BadTraceError(
            f"is a pickle, but no snapshot of torch.cuda.memory: {_what_it_is(whole)}; "
            "a snapshot is a dict with 'segments' and 'device_traces'"
        )
    settings = mapping(whole.get("allocator_settings", {}), "allocator_settings")
    facts = mapping(whole.get(OWN_KEY, {}), OWN_KEY)
    devices = sequence(whole.get("device_traces", []), "device_traces")
    if len(devices) > _MAX_DEVICES:
        raise BadTraceError(f"device_traces: has {len(devices):,} devices; {_MAX_DEVICES:,} are read at most")
    histories.check_places(devices)
    ends = read_segments(whole["segments"], stacks)
    recorded = {device: histories.events(history, device) for device, history in enumerate(devices)}
    return put_together(SnapshotParts(recorded, ends, stacks.all(), settings, facts, histories.keys, whole))


class _Histories:
    """The lists of ``device_traces``, converted and emptied while they grow."""

    def __init__(self, stacks: StackTable) -> None:
        self._stacks = stacks
        # The lists are kept, lest another one gets the address of one that is gone.
        self._begun: dict[int, tuple[EventsReader, list[object]]] = {}
        self.keys: set[str] = set()

    def take(self, grown: object) -> None:
        """Read what a list has by now, if it is a history: its entries are dicts with an action."""
        if not isinstance(grown, list) or not grown:
            return
        known = self._begun.get(id(grown))
        if known is None:
            first = grown[0]
            if not isinstance(first, dict) or "action" not in first:
                return
            known = self._begun[id(grown)] = (EventsReader(self._stacks), grown)
        known[0].take(grown)

    def check_places(self, devices: list[object]) -> None:
        """Raises ``BadTraceError`` where a list was emptied that is no history of a device."""
        if not self._begun.keys() <= {id(history) for history in devices}:
            raise BadTraceError("has trace entries outside of its device_traces")

    def events(self, history: object, device: int) -> Trace:
        """The events of one device, the rest of the list included. Raises ``BadTraceError`` with device and index."""
        entries = sequence(history, f"device_traces[{device}]")
        known = self._begun.get(id(entries))
        reader = EventsReader(self._stacks) if known is None else known[0]
        reader.take(entries)
        self.keys.update(reader.keys or ())
        return reader.events(device)


def _what_it_is(whole: object) -> str:
    if isinstance(whole, dict):
        return f"a dict with {', '.join(shown(key) for key in list(whole)[:8]) or 'nothing in it'}"
    return f"a {type(whole).__name__}"
