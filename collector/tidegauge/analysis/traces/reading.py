"""One door for recorded traces: whatever the file is called, its content says what it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Optional

from tidegauge.analysis.bad_traces import BadTraceError as BadTraceError
from tidegauge.analysis.bad_traces import RefusedPickleError as RefusedPickleError
from tidegauge.analysis.bad_traces import shown
from tidegauge.analysis.contents import MOST_BYTES, read_content
from tidegauge.analysis.snapshots import reading as snapshots
from tidegauge.analysis.traces.npz_traces import read_npz_trace
from tidegauge.analysis.traces.pools_by_address import with_pools
from tidegauge.analysis.traces.segment_order import with_segment_order
from tidegauge.analysis.traces.state_before import with_start
from tidegauge.core.allocator.trace import Trace, TraceError

_ZIP_MAGIC = b"PK\x03\x04"


def open_trace(
    path: Path,
    *,
    device: Optional[int] = None,
    torch_version: Optional[str] = None,
    cap_bytes: Optional[int] = None,
    most_bytes: int = MOST_BYTES,
) -> Trace:
    """The trace of one device in a snapshot or an ``.npz``, gzip or not, with the state before its first event.

    ``torch_version`` and ``cap_bytes`` are what the caller knows better than the file. Without ``device``, the only
    one that has events. Raises ``BadTraceError`` that names the file, and says of which devices there is a choice.
    """
    try:
        with path.open("rb") as stream:
            content = read_content(stream, most_bytes=most_bytes)
        trace = _known_better(_read(content, device, most_bytes), torch_version, cap_bytes)
        return with_beginning(trace)
    except OSError as error:
        raise BadTraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except TraceError as error:
        raise BadTraceError(f"{path}: contradicts itself: {error}") from error
    except BadTraceError as error:
        raise type(error)(f"{path}: {error}") from error


def with_beginning(trace: Trace) -> Trace:
    """``trace`` with the state before its first event. Raises ``BadTraceError`` and ``TraceError``."""
    return trace if trace.complete else with_segment_order(with_start(with_pools(trace)))


def _read(content: bytes, device: Optional[int], most_bytes: int) -> Trace:
    if content.startswith(_ZIP_MAGIC):
        trace = read_npz_trace(content, most_bytes=most_bytes)
        if device not in (None, trace.device):
            raise BadTraceError(
                f"is the trace of one device, which an .npz calls {trace.device}; there is no device {device}"
            )
        return trace
    snapshot = snapshots.read_bytes(content)
    return _known_to_the_probe(_of_device(snapshot.traces, device), snapshot.facts)


def _of_device(traces: Mapping[int, Trace], device: Optional[int]) -> Trace:
    with_events = [number for number, trace in traces.items() if len(trace)]
    there = ", ".join(f"{number} ({len(traces[number]):,} events)" for number in with_events)
    if device is None and len(with_events) == 1:
        return traces[with_events[0]]
    if not with_events:
        raise BadTraceError(
            "is a snapshot without a history: nothing to replay. Record one before the training steps: "
            "torch.cuda.memory._record_memory_history(context=None)"
        )
    if device is None:
        raise BadTraceError(f"has events of several devices, and a trace is of one: choose a device of {there}")
    if device not in with_events:
        raise BadTraceError(f"has no events of device {device}; there are events of {there}")
    return traces[device]


def _known_to_the_probe(trace: Trace, facts: Mapping[str, object]) -> Trace:
    """With what Tidegauge's probe wrote beside torch's own keys, where it is about this device."""
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
