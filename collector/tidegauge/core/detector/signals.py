"""Derived device signals: fragmentation, and memory outside the allocator."""

from __future__ import annotations

from sys import maxsize
from typing import Optional

from tidegauge.core.detector.params import Params
from tidegauge.core.detector.state_dicts import StateDict, plain, set_plain

_PAST_SHARE, _PAST_SAMPLES = 0.9, 32
"""A peak is past when no more than this part of it was reserved for so many samples."""

_STATE = (
    "_allocated", "_half_least", "_half_peak", "_half_samples", "_half_since_s", "_old_least", "_old_peak",
    "_outside", "_reserved", "_samples_below_peak", "most_reserved", "peak", "transient",
)  # fmt: skip


class Derivation:
    """Turns one reading into the values that are watched. Constant state, one call of each method a sample."""

    __slots__ = ("_params", "_peak_share", *_STATE)

    def __init__(self, params: Params) -> None:
        self._params = params
        self._peak_share = params.peak_share
        self.peak = 0
        """Largest allocated bytes seen, the allocator's own peak included where it is known."""
        self.most_reserved = 0
        """Largest reserved bytes seen, or that must have been: the largest allocated bytes."""
        self.transient = 0
        """Bytes above what a step began with when `peak` was reached: needed again when such a step comes again."""
        self._allocated = 0
        self._half_peak = 0
        self._half_least = maxsize
        self._old_peak = 0
        self._old_least = maxsize
        self._half_since_s: Optional[float] = None
        self._half_samples = 0
        self._outside: Optional[int] = None
        self._reserved = 0
        self._samples_below_peak = 0
        """Samples since the memory of the largest peak was given back to the card and not needed again."""

    def state_dict(self) -> StateDict:
        return plain(self, _STATE)

    def load_state_dict(self, state: StateDict) -> None:
        set_plain(self, _STATE, state)

    def unexplained_reserved(self, allocated: int, reserved: int, allocated_peak: Optional[int]) -> float:
        """Reserved bytes less `Params.peak_share` times the largest allocated so far; may be negative.

        Only its growth means anything: blocks that the allocator holds although the workload did not get larger.
        `allocated_peak` may be a high-water mark since the start or since the last sample: the running maximum of
        both is the same, and survives a user's `reset_peak_memory_stats()`.
        """
        peak = self.peak
        if allocated > peak:
            self.peak = peak = allocated
            self.transient = 0
            self._samples_below_peak = 0
        if allocated_peak is not None and allocated_peak > peak:
            self.peak = peak = allocated_peak
            self.transient = allocated_peak - max(self._allocated, allocated)
            self._samples_below_peak = 0
        self._allocated = allocated
        most = reserved if reserved > peak else peak
        if most > self.most_reserved:
            self.most_reserved = most
        return reserved - self._peak_share * peak

    def pieces_beside_peak(self, inactive_split: int, reserved: int) -> int:
        """Free pieces of segments in use that are needed at the same time as `peak`: after a peak that has passed, such
        as a copy of the weights while they were loaded, those that do not fit into what it needed."""
        if self._samples_below_peak >= _PAST_SAMPLES:
            if reserved >= self.peak + inactive_split:
                self._samples_below_peak = 0
            return min(inactive_split, max(reserved - self.peak, 0))
        self._samples_below_peak = self._samples_below_peak + 1 if reserved < _PAST_SHARE * self.peak else 0
        return inactive_split

    def nontorch_proven(self, allocated: int, reserved: int, nontorch: int, time_s: float) -> int:
        """The bytes outside the allocator, changed only as far as a reading proves.

        NVML's figure for the process is up to 0.1 s old, so `nvml - reserved` jumps by the size of every segment that
        is taken or given back meanwhile. The figure was true at some moment of the last `nvml_lag_s`; so the bytes
        outside are between it less the largest and it less the least reserved of that time. The last value is moved
        into that range and no farther: while segments come and go it stands still, and it never shows growth that need
        not be there. Between two samples with different reserved, the allocator may have given back all that tensors do
        not use (`empty_cache()`). The window is two halves, the older one complete: one to two times the lag.
        """
        if self._half_since_s is None:
            self._half_since_s = time_s
        self._half_samples += 1
        lag_s = self._params.nvml_lag_s
        passed_s = time_s - self._half_since_s
        if passed_s >= lag_s or (passed_s <= 0 and self._half_samples >= self._params.nvml_lag_samples):
            recent = passed_s < 2 * lag_s
            self._old_peak = self._half_peak if recent else 0
            self._old_least = self._half_least if recent else maxsize
            self._half_peak = 0
            self._half_least = maxsize
            self._half_since_s = time_s
            self._half_samples = 0
        if reserved > self._half_peak:
            self._half_peak = reserved
        least = reserved if reserved == self._reserved else allocated
        self._reserved = reserved
        if least < self._half_least:
            self._half_least = least
        process = nontorch + reserved
        at_least = process - max(self._half_peak, self._old_peak)
        if self._outside is None or self._outside < at_least:
            self._outside = at_least
        else:
            self._outside = min(self._outside, process - min(self._half_least, self._old_least))
        return self._outside
