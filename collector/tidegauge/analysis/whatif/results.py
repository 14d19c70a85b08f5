"""Results of the settings tried on a trace, in bytes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

from tidegauge.analysis.whatif.candidates import Changes
from tidegauge.analysis.whatif.limits import SearchLimits
from tidegauge.core.allocator.results import Replay
from tidegauge.core.text import one_line


class ReplayConfidence(str, Enum):
    """The trustworthiness of a predicted figure."""

    EXACT = "exact"
    """Nothing in the trace leaves a choice open."""
    CLOSE = "close"
    """Something that no trace says can move it a little."""
    ROUGH = "rough"
    """It rests on a guess: see the reasons."""


@dataclass(frozen=True)
class Trial:
    """The replay of a trace under one setting."""

    alloc_conf: str
    """The whole text for ``PYTORCH_ALLOC_CONF``; empty: torch's defaults."""
    changes: Changes
    """From today's; empty for today's own."""
    replay: Replay
    confidence: ReplayConfidence
    doubts: tuple[str, ...]
    """Why the confidence is not exact, in words."""
    needs_bytes: Optional[int] = None
    """The smallest cap that it was seen to survive; ``None`` where that was not looked for."""

    @property
    def today(self) -> bool:
        """Whether this is the setting that the trace was recorded under."""
        return not self.changes

    @property
    def waste_bytes(self) -> int:
        """Reserved and not allocated, when reserved memory was at its peak."""
        return self.replay.peak_reserved_bytes - self.replay.allocated_at_peak_reserved_bytes

    @property
    def failing_request_bytes(self) -> Optional[int]:
        """The first request that ran out of memory, rounded as the allocator rounds it; ``None``: none did."""
        return self.replay.failed[0].rounded_bytes if self.replay.failed else None

    @property
    def largest_free_bytes(self) -> Optional[int]:
        """The largest free block that this request could have used, had it been large enough."""
        return self.replay.failed[0].largest_free_bytes if self.replay.failed else None

    @property
    def device_calls(self) -> int:
        """``cudaMalloc`` and ``cudaFree`` (with expandable segments: map and unmap), over the whole trace."""
        return self.replay.device_allocs + self.replay.device_frees


@dataclass(frozen=True)
class WhatIf:
    """The results of all settings tried on one trace."""

    trials: tuple[Trial, ...]
    """Best first."""
    today: Trial
    """As the trace was recorded, or under the cap that was asked for."""
    recommended: Trial
    """The simplest within 1 % of the best; today's where that is one of them."""
    recorded: Replay
    """The trace under its own settings and cap: whether the model gives every recorded address back."""
    needed_bytes: int
    """Peak of allocated memory under today's settings with nothing to limit it: no setting gets below it."""
    alloc_conf: str
    """Today's."""
    torch_version: Optional[str]
    limits: SearchLimits
    """That were applied."""
    steps: Optional[int]
    """Training steps in the trace, where it marks them."""
    died: bool
    """Whether the recording itself ran out of memory: what the job would have done next is not in it."""


def titled(alloc_conf: str) -> str:
    """Settings as a person reads them; what a recording says in them may be anything."""
    return one_line(alloc_conf) or "torch's defaults"
