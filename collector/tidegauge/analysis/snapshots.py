"""PyTorch's memory snapshots: ``torch.cuda.memory._snapshot()``, pickled by ``_dump_snapshot`` or by anybody.

Schemas of torch 2.4 and later. A snapshot says neither its torch version, nor a cap, nor the device's size: what its
keys betray of the version is in ``snapshot_versions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple, Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.analysis.contents import MOST_BYTES, read_content
from tidegauge.analysis.restricted_pickle import loads
from tidegauge.analysis.snapshot_events import Events, read_events
from tidegauge.analysis.snapshot_fields import mapping, sequence
from tidegauge.analysis.snapshot_segments import read_segments
from tidegauge.analysis.snapshot_versions import effective_conf, oldest_torch
from tidegauge.analysis.stack_table import StackTable
from tidegauge.analysis.stream_handles import with_handles
from tidegauge.core.allocator.trace import KnownSegment, Stack, Trace

OWN_KEY = "tidegauge"
"""What Tidegauge's probe adds to a snapshot: a flat mapping that says what torch's own keys do not."""
_FIRST_BYTES = (b"\x80", b"(", b"}")
"""Of a pickled dict: protocols 2 to 5, 0, 1."""
_MOST_DEVICES = 1_024
"""torch itself is compiled for 120 at most."""


class Snapshot(NamedTuple):
    """What a snapshot says, by device."""

    traces: Mapping[int, Trace]
    """Of each device that has segments or events; ``Trace.end`` are its segments. Without a history the trace is empty.

    Not yet looked at: whether its first event is the process's first (``beginnings.with_start``).
    """
    stacks: tuple[Stack, ...]
    """What ``Trace.stack`` and ``KnownBlock.stack`` index, the same table for all devices."""
    facts: Mapping[str, object]
    """What Tidegauge's probe added (``OWN_KEY``), else empty."""


def read(path: Path, *, most_bytes: int = MOST_BYTES) -> Snapshot:
    """The snapshot in a file. Raises ``BadTraceError`` (``RefusedPickleError``) that names it."""
    try:
        with path.open("rb") as stream:
            return read_stream(stream, most_bytes=most_bytes)
    except OSError as error:
        raise BadTraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except BadTraceError as error:
        raise type(error)(f"{path}: {error}") from error


def read_stream(stream: BinaryIO, *, most_bytes: int = MOST_BYTES) -> Snapshot:
    """The snapshot in an open file, gzip or not."""
    return read_bytes(read_content(stream, most_bytes=most_bytes))


def read_bytes(content: bytes) -> Snapshot:
    """The snapshot in a pickle. Raises ``BadTraceError``: what was expected, and where."""
    if content[:1] not in _FIRST_BYTES:
        raise BadTraceError("is neither a snapshot of torch.cuda.memory nor an .npz trace")
    whole = loads(content)
    if not isinstance(whole, dict) or "segments" not in whole:
        raise BadTraceError(
            f"is a pickle, but no snapshot of torch.cuda.memory: {_what_it_is(whole)}; "
            "a snapshot is a dict with 'segments' and 'device_traces'"
        )
    settings = mapping(whole.get("allocator_settings", {}), "allocator_settings")
    facts = mapping(whole.get(OWN_KEY, {}), OWN_KEY)
    histories = sequence(whole.get("device_traces", []), "device_traces")
    if len(histories) > _MOST_DEVICES:
        raise BadTraceError(f"device_traces: has {len(histories):,} devices; {_MOST_DEVICES:,} are read at most")
    stacks = StackTable()
    ends = read_segments(whole["segments"], stacks)
    recorded = {device: read_events(history, device, stacks) for device, history in enumerate(histories)}
    table = stacks.all()
    conf = effective_conf(settings)
    version = oldest_torch(whole, settings, conf, recorded.values())
    nothing = read_events([], 0, stacks)
    devices = sorted({*ends, *(device for device, events in recorded.items() if events.action)})
    traces = {
        device: _trace(
            device, recorded.get(device, nothing), ends.get(device, ()), table, alloc_conf=conf, torch_version=version
        )
        for device in devices
    }
    return Snapshot(traces, table, facts)


def _trace(
    device: int,
    events: Events,
    end: tuple[KnownSegment, ...],
    stacks: tuple[Stack, ...],
    *,
    alloc_conf: str,
    torch_version: Optional[str],
) -> Trace:
    streams, stream = with_handles(events.streams, events.stream, (segment.stream for segment in end))
    pools = events.pools + tuple(sorted({segment.pool for segment in end} - set(events.pools)))
    return Trace(
        action=events.action,
        address=events.address,
        size_bytes=events.size_bytes,
        stream=stream,
        time_us=events.time_us,
        pool=events.pool,
        stack=events.stack,
        streams=streams,
        pools=pools,
        stacks=stacks,
        device=device,
        torch_version=torch_version,
        alloc_conf=alloc_conf,
        complete=False,
        end=end,
        skipped=events.skipped,
    )


def _what_it_is(whole: object) -> str:
    if isinstance(whole, dict):
        return f"a dict with {', '.join(shown(key) for key in list(whole)[:8]) or 'nothing in it'}"
    return f"a {type(whole).__name__}"
