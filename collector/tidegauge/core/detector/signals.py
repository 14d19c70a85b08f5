"""The device signals that are not read but derived: fragmentation and memory outside the allocator.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from typing import Optional

from tidegauge.core.detector.params import Params


class Derivation:
    """Turns one reading into the values that are watched. Constant state, one call of each method a sample."""

    __slots__ = ("_half_old", "_half_peak", "_half_samples", "_half_since_s", "_params", "peak")

    def __init__(self, params: Params) -> None:
        self._params = params
        self.peak = 0
        """Largest allocated bytes seen, the allocator's own peak included where it is known."""
        self._half_peak = 0
        self._half_old = 0
        self._half_since_s: Optional[float] = None
        self._half_samples = 0

    def unexplained_reserved(self, allocated: int, reserved: int, allocated_peak: Optional[int]) -> float:
        """Reserved bytes less `Params.peak_share` times the largest allocated so far; may be negative.

        Only its growth means anything: blocks that the allocator holds although the workload did not get larger.
        `allocated_peak` may be a high-water mark since the start or since the last sample: the running maximum of
        both is the same, and survives a user's `reset_peak_memory_stats()`.
        """
        if allocated > self.peak:
            self.peak = allocated
        if allocated_peak is not None and allocated_peak > self.peak:
            self.peak = allocated_peak
        return reserved - self._params.peak_share * self.peak

    def nontorch_at_least(self, reserved: int, nontorch: int, time_s: float) -> int:
        """A lower bound of the bytes outside the allocator.

        NVML's figure for the process is up to 0.1 s old, so `nvml - reserved` jumps by the size of every segment that
        is taken or given back meanwhile. Subtracting the largest reserved of the last moments instead never shows
        memory that is not there; floors then lift the few samples where it shows too little. The window is two
        halves, the older one complete, so it is one to two times the lag.
        """
        if self._half_since_s is None:
            self._half_since_s = time_s
        self._half_samples += 1
        lag_s = self._params.nvml_lag_s
        passed_s = time_s - self._half_since_s
        if passed_s >= lag_s or (passed_s <= 0 and self._half_samples >= self._params.nvml_lag_samples):
            self._half_old = self._half_peak if passed_s < 2 * lag_s else 0
            self._half_peak = 0
            self._half_since_s = time_s
            self._half_samples = 0
        if reserved > self._half_peak:
            self._half_peak = reserved
        return nontorch + reserved - max(self._half_peak, self._half_old)
