"""How often requests may go out. Values in, values out; the caller brings the clock and waits."""

from __future__ import annotations

import threading


class TokenBucket:
    """``per_s`` requests a second on average and ``burst`` at once, as client-go's ``QPS`` and ``Burst``. Thread-safe:
    each caller gets a place in the queue, and none overtakes."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._free = float(burst)
        """Below zero: so many have been promised ahead of time."""
        self._at_s: float | None = None
        self._lock = threading.Lock()

    def take(self, now_s: float, *, at_most_s: float) -> float | None:
        """Seconds to wait before the request may go out; ``None``, and no place taken, if that is over
        ``at_most_s``."""
        with self._lock:
            if self._at_s is not None:
                self._free = min(self._burst, self._free + max(0.0, now_s - self._at_s) * self._per_s)
            self._at_s = now_s
            wait_s = max(0.0, (1 - self._free) / self._per_s)
            if wait_s > at_most_s:
                return None
            self._free -= 1
            return wait_s
