"""The figures of one ``torch.OutOfMemoryError``, from the probe, the error's own text or a snapshot.

What follows from them alone is here; which kind of OOM that makes is ``core.oom``. Bytes throughout; ``None`` is not
known, and then not taken for a reason. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState, Signal, Verdict

CONTEXTS_BYTES = 2 << 30
"""What CUDA contexts and a communicator may take without being worth a word (0.3 to 0.6 GiB a context)."""
SMALL_CONTEXTS_BYTES = 1 << 30
"""The same on a small GPU, where a quarter of its memory is less than ``CONTEXTS_BYTES``."""
LAST_PART, MIN_LAST_BYTES, MAX_LAST_BYTES = 1 / 64, 64 << 20, 512 << 20
"""The last free part of a GPU cannot be had in one request: a GPU with less than this free is full."""


@dataclass(frozen=True)
class OomCase:
    """One failed allocation, and the figures known around it."""

    wanted_bytes: int
    """The segment that the allocator tried to get: the request, rounded up."""
    free_bytes: int
    """Of the device, for everybody, just after the refusal."""
    limit_bytes: int
    """The cap if there is one, else the device's total."""
    allocated_bytes: int
    reserved_bytes: int
    step: Optional[int] = None
    """Training steps that had ended."""
    verdict: Optional[Verdict] = None
    """The detector's, of the steps before; ``None`` where these are not known."""
    cap_fraction: Optional[float] = None
    usable_bytes: Optional[int] = None
    """CUDA's total of the GPU."""
    nontorch_bytes: Optional[int] = None
    """What the process holds outside the allocator."""
    others_bytes: Optional[int] = None
    """What other processes hold on the GPU."""
    private_free_bytes: int = 0
    """Free in the private pools of CUDA graphs and ``MemPool``, where nothing outside of them may use it."""
    largest_free_bytes: Optional[int] = None
    """The largest free block of the pools that the request could use."""
    expandable: bool = False
    """Whether ``expandable_segments`` is known to be on."""
    approximate: bool = False
    """The figures are from a text with two decimals."""
    uncapped: bool = False
    """Whether no cap is known to be in force: a message names it where there is one."""
    before_2_1: bool = False
    """Of a PyTorch that does not know ``expandable_segments``."""
    neighbours: tuple[tuple[int, int], ...] = ()
    """Other processes on the GPU, where they are listed: pid and bytes, the largest first."""

    @property
    def capped(self) -> bool:
        """Without a cap the limit is the GPU's total, and what it has free would not have been enough."""
        beyond_limit = self.reserved_bytes + self.wanted_bytes > self.limit_bytes > 0
        return not self.uncapped and beyond_limit and self.free_bytes >= self.wanted_bytes

    @property
    def short_bytes(self) -> int:
        """The bytes by which the request did not fit. Cached segments had been released before it failed."""
        if self.capped:
            return self.reserved_bytes + self.wanted_bytes - self.limit_bytes
        if self.free_bytes < self.wanted_bytes:
            return self.wanted_bytes - self.free_bytes
        return 0 if self.enough_free else self.wanted_bytes

    @property
    def enough_free(self) -> bool:
        """Whether the request was refused although the GPU had room for it. Free memory is read after the failure."""
        last_bytes = min(max(round(LAST_PART * (self.total_bytes or 0)), MIN_LAST_BYTES), MAX_LAST_BYTES)
        return not self.capped and self.free_bytes >= max(self.wanted_bytes, last_bytes)

    @property
    def contexts_bytes(self) -> int:
        """What contexts and communicators may take on this GPU without being worth a word."""
        if self.total_bytes is None:
            return CONTEXTS_BYTES
        return min(CONTEXTS_BYTES, max(SMALL_CONTEXTS_BYTES, self.total_bytes // 4))

    @property
    def total_bytes(self) -> Optional[int]:
        """The GPU's total as CUDA has it: the limit, where that is no cap."""
        if self.usable_bytes is not None or self.capped:
            return self.usable_bytes
        return self.limit_bytes or None

    @property
    def pieces_bytes(self) -> int:
        """Reserved, not in use, and where the request may go."""
        return max(0, self.reserved_bytes - self.allocated_bytes - self.private_free_bytes)

    @property
    def unexplained_bytes(self) -> Optional[int]:
        """Taken on the GPU, and not by this allocator; ``None`` where NVML says whose it is, or nothing is known."""
        if self.total_bytes is None or self.nontorch_bytes is not None or self.others_bytes is not None:
            return None
        return max(0, self.total_bytes - self.free_bytes - self.reserved_bytes)

    @property
    def private_pools_grew(self) -> bool:
        """Whether it would have fitted without what reserved memory gained, and private pools hold half of that."""
        grown_bytes = 0 if self.verdict is None else self.verdict.grown_bytes or 0
        return self.grew_enough(Signal.RESERVED) and 2 * self.private_free_bytes >= grown_bytes

    def grew_enough(self, signal: Signal) -> bool:
        """Whether it would have fitted without what this signal gained."""
        verdict = self.verdict
        return (
            verdict is not None
            and verdict.state is LeakState.LEAK
            and verdict.signal is signal
            and verdict.grown_bytes is not None
            and verdict.grown_bytes >= self.short_bytes > 0
        )

    def say(self, count_bytes: Optional[int]) -> str:
        """A figure for people: "7.5 GiB", "about 7.5 GiB"."""
        return f"{'about ' * self.approximate}{format_bytes(count_bytes or 0)}"
