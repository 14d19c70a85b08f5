"""Why a job that failed ran out of memory, from what its ranks left in their rings: for the person at the terminal.

A scheduler sees exit code 1, and the job's own traceback does not say whether the memory fraction or the GPU was the
limit, nor whether something had been growing. Needs no service.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Optional

from tidegauge.agent.ring_reader import RingBlankError, RingReader
from tidegauge.core.detector import RankDetector
from tidegauge.core.ids import RankIdentity
from tidegauge.core.incidents import OomRecord
from tidegauge.core.oom import explain_oom
from tidegauge.core.ring_layout import LayoutError
from tidegauge.core.run_dirs import RING_SUFFIX
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.core.verdicts import OK, Verdict

MOST_RINGS = 4096
MOST_TOLD = 3
"""Ranks that are told of; when one rank of many runs out of memory, the others mostly follow for other reasons."""
_RING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _Death(NamedTuple):
    """A rank's last out-of-memory error."""

    who: RankIdentity
    sample: Sample
    verdict: Verdict


def out_of_memory_notes(folder: int, *, job_id: str, since_unix_s: float) -> list[str]:
    """One sentence a rank of ``job_id`` that ran out of memory at or after ``since_unix_s``, the earliest first.

    ``folder`` is a descriptor of the user's folder in the run directory. Rings that cannot be read are passed over.
    """
    deaths = [death for death in _deaths(folder, job_id) if death.sample.wall_ns >= since_unix_s * 1e9]
    deaths.sort(key=lambda death: death.sample.mono_ns)
    return [_sentence(death) for death in deaths[:MOST_TOLD]]


def _deaths(folder: int, job_id: str) -> Iterator[_Death]:
    names = [name for name in os.listdir(folder) if name.endswith(RING_SUFFIX)]
    for name in names[:MOST_RINGS]:
        with suppress(OSError, LayoutError, RingBlankError):
            ring = os.open(name, _RING, dir_fd=folder)
            try:
                reader = RingReader(ring)
                if reader.identity is None or reader.identity.job_id != job_id:
                    continue
                samples = reader.read()
            finally:
                os.close(ring)
            last = _last_oom(samples)
            if last is not None:
                yield _Death(reader.identity, last, _verdict(samples, last))


def _last_oom(samples: Sequence[Sample]) -> Optional[Sample]:
    ooms = [sample for sample in samples if sample.event is EventCode.OUT_OF_MEMORY]
    return max(ooms, key=lambda sample: sample.mono_ns, default=None)


def _verdict(samples: Sequence[Sample], oom: Sample) -> Verdict:
    """The detector's word on the steps that the ring still holds."""
    detector, step = RankDetector(), -1
    for sample in samples:
        if sample.kind is RecordKind.STEP and sample.device == oom.device and sample.step > step:
            step = sample.step
            detector.update(
                step=step,
                time_s=sample.mono_ns / 1e9,
                allocated_bytes=sample.allocated_bytes,
                reserved_bytes=sample.reserved_bytes,
                allocated_peak_bytes=sample.allocated_peak_bytes,
                limit_bytes=oom.event_c or None,
            )
    return OK if step < 0 else detector.look_now()


def _sentence(death: _Death) -> str:
    who, sample = death.who, death.sample
    oom = OomRecord(
        at_unix_s=sample.wall_ns / 1e9,
        step=sample.step,
        wanted_bytes=sample.event_a,
        free_bytes=sample.event_b,
        limit_bytes=sample.event_c,
        allocated_bytes=sample.allocated_bytes,
        reserved_bytes=sample.reserved_bytes,
    )
    explained = explain_oom(oom, verdict=death.verdict, cap_fraction=who.limit_fraction, alloc_conf=who.alloc_conf)
    return f"rank {who.rank} ran out of memory at step {sample.step}: {explained.sentence}"
