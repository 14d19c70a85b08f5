"""Explains at the terminal why a failed job ran out of memory, from its ranks' files in the run directory.

A scheduler sees exit code 1, and the job's own traceback does not say whether the memory fraction or the GPU was the
limit, nor whether something had been growing. Needs no service.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, Optional

from tidegauge.agent.rings.reader import RingBlankError, RingReader
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.oom.snapshot import OomSnapshot, history_of, look_into
from tidegauge.analysis.snapshots.reading import read_stream
from tidegauge.core.ids import DeviceUuid, RankIdentity
from tidegauge.core.oom.of_rank import last_oom, oom_words
from tidegauge.core.ring_layout import LayoutError
from tidegauge.core.run_dirs import RING_SUFFIX, oom_snapshot_name, process_of
from tidegauge.core.samples import Sample

MAX_RINGS = 4096
MAX_TOLD = 3
"""Ranks that are told of; when one rank of many runs out of memory, the others mostly follow for other reasons."""
MAX_SNAPSHOT_BYTES = 64 << 20
MAX_EVENTS = 50_000
"""Of a history that is replayed under another setting before the job's exit code is passed on: a second or two."""
SAME_MOMENT_S = 1.0
"""A snapshot is begun right after the record of the error is written."""
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Rank(NamedTuple):
    """The content of one of the job's rings."""

    ring: str
    who: RankIdentity
    samples: list[Sample]


class _Death(NamedTuple):
    """A rank's last out-of-memory error."""

    ring: str
    who: RankIdentity
    oom: Sample
    samples: list[Sample]
    others_bytes: Optional[int]
    """What other ranks of the job had reserved on the same GPU, where it is as much as was missing."""


def out_of_memory_notes(folder: int, *, job_id: str, since_unix_s: float, told: Collection[str] = ()) -> list[str]:
    """A note on each rank of ``job_id`` that ran out of memory at or after ``since_unix_s``, the earliest first.

    The first line of a note names the error; the others, where the probe left a snapshot, the holders of the memory.
    ``folder`` is a descriptor of the user's folder in the run directory. Unreadable files are ignored. An explanation
    in one of the messages that were ``told`` already is not repeated.
    """
    deaths = [death for death in _deaths(folder, job_id) if death.oom.wall_ns >= since_unix_s * 1e9]
    deaths.sort(key=lambda death: death.oom.mono_ns)
    notes = [_note(folder, death) for death in deaths[:MAX_TOLD]]
    return ["\n".join([_not_again(first, told), *others]) for first, *others in notes]


def _not_again(line: str, told: Collection[str]) -> str:
    """The service may have said why the rank ran out of memory, a moment ago: by the figures of the error, for how much
    the tensors had grown it may have seen a step earlier."""
    error, figures, *_ = line.split(": ", 2)
    return f"{error}, as explained above" if any(figures in text for text in told) else line


def _deaths(folder: int, job_id: str) -> Iterator[_Death]:
    ranks = list(_ranks(folder, job_id))
    for ring, who, samples in ranks:
        oom = last_oom(samples)
        if oom is not None:
            others = [rank for rank in ranks if rank.ring != ring and rank.who.attempt == who.attempt]
            yield _Death(ring, who, oom, samples, _held_by(others, who, oom))


def _ranks(folder: int, job_id: str) -> Iterator[_Rank]:
    names = [name for name in os.listdir(folder) if name.endswith(RING_SUFFIX)]
    for name in names[:MAX_RINGS]:
        with suppress(OSError, LayoutError, RingBlankError):
            ring = os.open(name, _FILE, dir_fd=folder)
            try:
                reader = RingReader(ring)
                if reader.identity is None or reader.identity.job_id != job_id:
                    continue
                yield _Rank(name, reader.identity, reader.read())
            finally:
                os.close(ring)


def _held_by(others: list[_Rank], who: RankIdentity, oom: Sample) -> Optional[int]:
    """The bytes that ``others`` had reserved on the GPU of ``oom``, by the record of each that is nearest to it.

    Bounded by the memory of the GPU beside ``who``: a rank that had ended by then held nothing any more. ``None`` where
    that is less than the missing bytes, which it does not explain.
    """
    gpu, total_bytes = _gpu(who, oom), round(oom.event_c / (who.limit_fraction or 1.0))
    there = [[sample for sample in rank.samples if _gpu(rank.who, sample) == gpu] for rank in others]
    nearest = [min(samples, key=lambda sample: abs(sample.mono_ns - oom.mono_ns)) for samples in there if samples]
    held_bytes = sum(sample.reserved_bytes for sample in nearest)
    held_bytes = min(held_bytes, total_bytes - oom.event_b - oom.reserved_bytes)
    return held_bytes if gpu is not None and held_bytes >= oom.event_a - oom.event_b > 0 else None


def _gpu(who: RankIdentity, sample: Sample) -> Optional[DeviceUuid]:
    return who.device_uuids[sample.device] if sample.device < len(who.device_uuids) else None


def _note(folder: int, death: _Death) -> list[str]:
    snapshot = _snapshot(folder, death)
    lines = oom_words(
        death.who,
        death.samples,
        death.oom,
        None if snapshot is None else snapshot.held,
        others_bytes=death.others_bytes,
    )
    if snapshot is not None and 0 < len(snapshot.trace) <= MAX_EVENTS:
        lines += [f"  {line}" for line in _with_expandable_segments(snapshot)]
    return lines


def _snapshot(folder: int, death: _Death) -> Optional[OomSnapshot]:
    """The memory of the rank at that moment; ``None`` without a snapshot of this error."""
    process = process_of(death.ring)
    if process is None:
        return None
    with suppress(OSError, BadTraceError):
        descriptor = os.open(oom_snapshot_name(process), _FILE, dir_fd=folder)
        with open(descriptor, "rb") as stream:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            snapshot = read_stream(stream, most_bytes=MAX_SNAPSHOT_BYTES)
        if not _is_of(death.oom, snapshot.facts):
            return None
        return look_into(snapshot, device=death.oom.device)
    return None


def _is_of(oom: Sample, facts: Mapping[str, object]) -> bool:
    """Whether the probe took it at this error; the error before may be less than a second older."""
    taken_s = facts.get("unix_s")
    at_once = isinstance(taken_s, float) and abs(taken_s - oom.wall_ns / 1e9) <= SAME_MOMENT_S
    return at_once and (facts.get("wanted_bytes"), facts.get("free_bytes")) == (oom.event_a, oom.event_b)


def _with_expandable_segments(snapshot: OomSnapshot) -> list[str]:
    """The effect of expandable segments, where the job recorded a history."""
    from tidegauge.analysis.whatif.search import whatif  # seldom, and this loads the allocator's model
    from tidegauge.analysis.whatif.words import findings

    with suppress(Exception):  # the file is the job's, and the words on the other ranks are worth more than this
        return findings(whatif(history_of(snapshot), candidates=[{"expandable_segments": "True"}]))[:2]
    return []
