"""Memory of a process outside PyTorch's allocator: NVML's figure minus ``reserved``, both of the same moment.

The two are read at different times. A segment that the allocator takes or gives back in between would look like
memory of NCCL or of the CUDA context, gigabytes of it. So a figure of NVML waits for the first record *after* it: what
is reserved before and after bounds what was reserved at that moment.
"""

from __future__ import annotations

from typing import NamedTuple

from tidegauge.core.samples import Sample

PATIENCE_NS = 2_000_000_000
"""How long a figure waits for the next record: four ticks. A rank that writes none is stuck, and its memory with it."""


class _Waiting(NamedTuple):
    mono_ns: int
    used_bytes: int
    before: Sample
    overdue: bool = False
    """``PATIENCE_NS`` was over when NVML was asked again; the records of that poll may still tell. An agent that stood
    still, or its whole machine, finds them in the ring."""


class NontorchMeter:
    """One device of one rank. Feed it what NVML says and each record, in the order of the agent's polls."""

    def __init__(self) -> None:
        self.bytes: int | None = None
        """The last settled figure; ``None`` before the first, and while NVML does not tell the process's bytes."""
        self._last: Sample | None = None
        self._waiting: _Waiting | None = None

    def nvml_says(self, used_bytes: int | None, *, mono_ns: int) -> None:
        """``used_bytes`` on this device at ``mono_ns`` on CLOCK_MONOTONIC. Call before feeding the poll's records."""
        if used_bytes is None:
            self.forget()
        elif self._waiting is None:
            if self._last is not None:
                self._waiting = _Waiting(mono_ns, used_bytes, self._last)
        elif self._waiting.overdue:
            self._settle(self._waiting, after=self._waiting.before)
        elif mono_ns - self._waiting.mono_ns > PATIENCE_NS:
            self._waiting = self._waiting._replace(overdue=True)

    def forget(self) -> None:
        """What NVML has said is of another GPU, or NVML does not say it any more."""
        self.bytes = self._waiting = None

    def record(self, sample: Sample) -> None:
        waiting = self._waiting
        if waiting is not None:
            if sample.mono_ns >= waiting.mono_ns:
                self._settle(waiting, after=sample)
            else:
                self._waiting = waiting._replace(before=sample)
        self._last = sample

    def _settle(self, waiting: _Waiting, *, after: Sample) -> None:
        """Bounded by what was reserved around the reading; the last figure stays unless the bounds exclude it.

        With no last figure the lower bound is taken: never show memory that may not be there. Reserved may in
        truth have risen and fallen between two records (a flush), which nothing here can see.
        """
        low = max(0, waiting.used_bytes - max(waiting.before.reserved_bytes, after.reserved_bytes))
        high = max(0, waiting.used_bytes - min(waiting.before.reserved_bytes, after.reserved_bytes))
        self.bytes = low if self.bytes is None else min(max(self.bytes, low), high)
        self._waiting = None
