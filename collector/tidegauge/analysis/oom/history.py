"""Prepares the history in a snapshot of an out-of-memory error for a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from tidegauge.analysis.oom.snapshot import OomSnapshot
from tidegauge.analysis.traces.reading import with_beginning
from tidegauge.core.allocator.trace import Trace


def history_of(snapshot: OomSnapshot, *, torch_version: Optional[str] = None, cap_bytes: Optional[int] = None) -> Trace:
    """Its trace under the cap that refused, where one is known, as ``open_trace`` would give it.

    ``torch_version`` and ``cap_bytes`` are what the caller knows better. Raises ``ValueError``.
    """
    return with_beginning(
        replace(
            snapshot.trace,
            torch_version=torch_version or snapshot.torch_version,
            cap_bytes=cap_bytes or _cap_of(snapshot),
        )
    )


def _cap_of(snapshot: OomSnapshot) -> Optional[int]:
    """The device's size is none."""
    case = snapshot.case
    return case.limit_bytes if case is not None and case.capped and not case.approximate else snapshot.trace.cap_bytes
