"""Profiles a recording in a process of its own, for a service that goes on meanwhile: niced, with bounds on time and
memory, whatever a job wrote.

As a program (``python -m tidegauge.analysis.profile.apart``) it reads the recording and its snapshot from stdin and
writes the packed profile to stdout.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Optional

from tidegauge.core import wire
from tidegauge.core.bounded import bounded
from tidegauge.core.profile.advice import StepAdvice
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import OwnedTensor, RankRecording
from tidegauge.core.profile.step_profile import OwnedMemory, StepProfile
from tidegauge.core.profile.stored_profile import MAX_PACKED_BYTES, pack_profile, unpack_profile
from tidegauge.core.text import one_line
from tidegauge.core.units import format_duration

if TYPE_CHECKING:  # what replays is loaded by the process apart
    from tidegauge.analysis.profile.recording import NamedRecording

MAX_S = 120.0
"""100,000 events take some 2 s."""
MAX_CPU_S = 60
MAX_MEMORY_BYTES = 4 << 30
"""Address space: 100,000 events take some 210 MiB of memory."""
MAX_ADVISED_EVENTS = 50_000
"""Replays with other settings of the allocator, in plain Python, take 0.1 s for 1,000 events."""
NICENESS = 10
_HEAD = struct.Struct("<Q")
_UNUSABLE = 3
"""The exit code for a recording that cannot be profiled; stderr says why."""


class AdviceFacts(NamedTuple):
    """The node's own facts that advice goes by; ``None``: not known."""

    world_size: Optional[int] = None
    limit_bytes: Optional[int] = None
    """What the rank's GPU has for PyTorch."""


NOTHING_KNOWN = AdviceFacts()


def profile_apart(
    said: RankRecording, content: bytes, facts: AdviceFacts = NOTHING_KNOWN, *, most_s: float = MAX_S
) -> StepProfile:
    """The profile of a recording, with advice; ``content`` is its snapshot (``core.snapshot_columns``), ``said``
    bounded already.

    Blocks. Raises ``ValueError`` where it cannot be profiled, or not within the bounds.
    """
    head = wire.to_json(_Head(said, facts))
    given = b"".join((_HEAD.pack(len(head)), head, content))
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=given,
            capture_output=True,
            timeout=most_s,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"it takes longer than {format_duration(most_s)}") from error
    except OSError as error:
        raise ValueError(f"no process can be started for it: {error}") from error
    if done.returncode == _UNUSABLE:
        raise ValueError(one_line(done.stderr.decode(errors="replace").strip()))
    if done.returncode or len(done.stdout) > MAX_PACKED_BYTES:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ValueError(f"its process ended with {done.returncode}: {one_line(last)}")
    return unpack_profile(done.stdout)


class _Head(NamedTuple):
    said: RankRecording
    facts: AdviceFacts


def profile_here(said: RankRecording, content: bytes, facts: AdviceFacts = NOTHING_KNOWN) -> StepProfile:
    """The same in this process. Raises ``ValueError``."""
    from tidegauge.analysis.profile.profile import profile_of_recording
    from tidegauge.analysis.profile.recording import recording_of
    from tidegauge.analysis.snapshots.reading import read_bytes
    from tidegauge.analysis.traces.reading import trace_of, with_beginning

    trace = trace_of(read_bytes(content), said.device)
    began = bisect_left(trace.time_us, said.boundaries_us[0]) if said.boundaries_us and trace.time_us else 0
    if began >= len(trace):
        raise ValueError("no events of the recorded steps are in its snapshot")
    trace = with_beginning(trace.since(began) if began else trace)
    owned, before = (
        [OwnedMemory(one.address, one.category, said.module_of(one), _name(one)) for one in tensors]
        for tensors in (said.owned, said.owned_before)
    )
    recording = recording_of(trace, owned=owned, owned_before=before)
    profile = profile_of_recording(recording, roots=said.roots, modules_missing=said.modules_missing)
    return replace(profile, advice=_advice(recording, facts))


def _name(tensor: OwnedTensor) -> Optional[str]:
    return tensor.name if tensor.name and tensor.category is Category.OTHER else None


def _advice(recording: NamedRecording, facts: AdviceFacts) -> Optional[StepAdvice]:
    """``None`` where it would take too long, or fails: the profile does without."""
    from tidegauge.analysis.profile.advice.advise import advice_of

    if len(recording.trace) > MAX_ADVISED_EVENTS:
        return None
    try:
        return bounded(advice_of(recording, ranks=facts.world_size, limit_bytes=facts.limit_bytes))
    except Exception:
        return None


def _main() -> int:
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    given = sys.stdin.buffer.read()
    (length,) = _HEAD.unpack_from(given)
    said, facts = wire.from_wire(_Head, json.loads(given[_HEAD.size : _HEAD.size + length]))
    try:
        packed = pack_profile(profile_here(said, given[_HEAD.size + length :], facts))
    except (ValueError, MemoryError, RecursionError) as error:
        print(str(error) or type(error).__name__, file=sys.stderr)
        return _UNUSABLE
    sys.stdout.buffer.write(packed)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
