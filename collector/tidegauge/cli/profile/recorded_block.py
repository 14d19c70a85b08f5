"""What a block of training code leaves behind, from which profiles and advice are worked out when they are asked for.

Values alone: no tensor of the job, and no frame of it, is kept alive. Working them out replays the recording, in plain
Python often, so that it takes seconds for a large model; the model of the allocator is imported only then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tidegauge.core.profile.step_profile import OwnedMemory, SeenGradient
from tidegauge.core.snapshot_columns import PackedSnapshot

if TYPE_CHECKING:
    from tidegauge.analysis.profile.recording import NamedRecording
    from tidegauge.core.profile.advice import StepAdvice
    from tidegauge.core.profile.step_profile import StepProfile


class RecordedBlock(NamedTuple):
    """The allocator's history of a block, and what was known of the block's tensors."""

    packed: PackedSnapshot
    since_us: int = 0
    """Unix time before which events are not of the block."""
    owned: Sequence[OwnedMemory] = ()
    """At its end."""
    owned_before: Sequence[OwnedMemory] = ()
    gradients: Sequence[SeenGradient] = ()
    threads: Mapping[int, int] = MappingProxyType({})
    """How many threads stepped optimizers, by device."""
    modules_missing: str | None = None
    """Why there are no modules."""

    def recordings(self) -> dict[int, NamedRecording]:
        """By device, of those that have events. Raises ``BadTraceError`` and ``TraceError``."""
        from tidegauge.analysis.profile.recording import recording_of
        from tidegauge.analysis.snapshots.packed import from_packed
        from tidegauge.analysis.traces.reading import with_beginning

        found = {}
        for device, trace in from_packed(self.packed).traces.items():
            began = bisect_left(trace.time_us, self.since_us)
            trace = trace.since(began) if began else trace
            if len(trace):
                found[device] = recording_of(
                    with_beginning(trace),
                    owned=self.owned,
                    owned_before=self.owned_before,
                    gradients=self.gradients,
                    stepping_threads=self.threads.get(device, 1),
                )
        return found

    def profile(self, recording: NamedRecording) -> StepProfile:
        """Of one of ``recordings``."""
        from tidegauge.analysis.profile.profile import profile_of_recording

        return profile_of_recording(recording, modules_missing=self.modules_missing)


class BlockSurroundings(NamedTuple):
    """What the advice has to know beside a recording."""

    world_size: int | None
    card_bytes: Mapping[int, int]
    """By device."""

    def advice(self, recording: NamedRecording) -> StepAdvice:
        from tidegauge.cli.profile.advising import advise

        return advise(recording, ranks=self.world_size, card_bytes=self.card_bytes[recording.trace.device])
