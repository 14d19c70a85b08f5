"""Explains a rank's out-of-memory error from its ring and the memory it held, with the same words everywhere.

For whoever has the samples: ``tidegauge run`` after the job's end, the probe at the end of its own process. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from tidegauge.core.detector import RankDetector
from tidegauge.core.evidence.held_memory import HeldMemory, free_words, longer_copy_words, owner_lines
from tidegauge.core.ids import RankIdentity
from tidegauge.core.oom import explain_oom
from tidegauge.core.samples import TICKS_ALONE_S, EventCode, OomRecord, RecordKind, Sample
from tidegauge.core.verdicts import OK, LeakState, Verdict


def last_oom(samples: Sequence[Sample]) -> Optional[Sample]:
    """The record of the last out-of-memory error, or ``None``."""
    ooms = [sample for sample in samples if sample.event is EventCode.OUT_OF_MEMORY]
    return max(ooms, key=lambda sample: sample.mono_ns, default=None)


def oom_words(
    who: RankIdentity,
    samples: Sequence[Sample],
    oom: Sample,
    held: Optional[HeldMemory] = None,
    *,
    others_bytes: Optional[int] = None,
) -> list[str]:
    """Lines for people: what it was, who held the memory, what was free. ``held`` is of the moment of ``oom``;
    ``others_bytes`` is what other processes are known to have held on that GPU.
    """
    largest = None if held is None else held.largest_for(oom.event_a)
    named = _noted(samples, oom, EventCode.OTHERS_AT_OOM)
    missing_bytes = oom.event_a - oom.event_b
    if named is not None and (missing_bytes <= 0 or named.event_c < missing_bytes):
        named = None
    explained = explain_oom(
        OomRecord(
            at_unix_s=oom.wall_ns / 1e9,
            step=oom.step,
            wanted_bytes=oom.event_a,
            free_bytes=oom.event_b,
            limit_bytes=oom.event_c,
            allocated_bytes=oom.allocated_bytes,
            reserved_bytes=oom.reserved_bytes,
            private_free_bytes=_private_free_bytes(samples, oom) if held is None else held.private_free_bytes,
        ),
        verdict=_verdict(samples, oom),
        cap_fraction=who.limit_fraction,
        others_bytes=others_bytes if named is None else named.event_c,
        neighbours=_neighbours(named),
        largest_free_bytes=None if largest is None else largest.size_bytes,
        alloc_conf=who.alloc_conf,
    )
    lines = [f"rank {who.rank} ran out of memory at step {oom.step}: {explained.sentence}"]
    if held is not None:
        lines += [f"  {line}" for line in owner_lines(held)]
        copied = longer_copy_words(held, oom.event_a)
        lines += [f"  {line}" for line in (free_words(held, oom.event_a), copied) if line is not None]
    return lines


def _private_free_bytes(samples: Sequence[Sample], oom: Sample) -> int:
    pools = _noted(samples, oom, EventCode.POOLS_AT_OOM)
    return 0 if pools is None else pools.event_a


def _noted(samples: Sequence[Sample], oom: Sample, event: EventCode) -> Optional[Sample]:
    """What was recorded about ``oom`` after it."""
    noted = (one for one in samples if one.event is event and one.device == oom.device)
    return next((one for one in noted if one.mono_ns >= oom.mono_ns), None)


def _neighbours(named: Optional[Sample]) -> tuple[tuple[int, int], ...]:
    """Pid and bytes of the largest of the other processes, and the rest of them as one without a pid."""
    if named is None:
        return ()
    rest_bytes = named.event_c - named.event_b
    return ((named.event_a, named.event_b), *(((0, rest_bytes),) if rest_bytes > 0 else ()))


def _verdict(samples: Sequence[Sample], oom: Sample) -> Verdict:
    """The detector's word on the steps that the ring still holds; where none ended for long before ``oom`` (inference,
    an evaluation), on the ticks since the last one, unless the steps had shown a leak."""
    steps: list[Sample] = []
    ticks: list[Sample] = []
    for sample in samples:
        if sample.device != oom.device or sample.mono_ns > oom.mono_ns:
            continue
        if sample.kind is RecordKind.STEP and (not steps or sample.step > steps[-1].step):
            steps.append(sample)
            ticks = []
        elif sample.kind is RecordKind.TICK:
            ticks.append(sample)
    by_steps = _judge(steps, oom)
    if by_steps.state is LeakState.LEAK or not ticks:
        return by_steps
    if (oom.mono_ns - ticks[0].mono_ns) / 1e9 < TICKS_ALONE_S:
        return by_steps
    return _judge(ticks, oom)._replace(onset_step=None, bytes_per_step=None, steps_to_oom=None)


def _judge(points: Sequence[Sample], oom: Sample) -> Verdict:
    detector = RankDetector()
    for number, sample in enumerate(points, 1):
        detector.update(
            step=sample.step if sample.kind is RecordKind.STEP else number,
            time_s=sample.mono_ns / 1e9,
            allocated_bytes=sample.allocated_bytes,
            reserved_bytes=sample.reserved_bytes,
            allocated_peak_bytes=sample.allocated_peak_bytes,
            inactive_split_bytes=sample.inactive_split_bytes,
            limit_bytes=oom.event_c or None,
        )
    return detector.look_now() if points else OK
