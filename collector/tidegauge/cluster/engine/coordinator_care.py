"""When to see to a coordinator that does not announce itself: Ray starts one that died, not one that never started."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.cluster.service_record import StateFiles, read_address

COORDINATOR_AWAY_S, LONGEST_AWAY_S = 10.0, 60.0
"""Ray starts one that died again within 2 s."""


class CoordinatorCare:
    """Whether somebody should see to the coordinator: it is not announced for a while. Less and less often, for on a
    full disk it may well be there and unable to announce itself."""

    def __init__(self, files: StateFiles, monotonic_s: Callable[[], float]) -> None:
        self._files = files
        self._monotonic_s = monotonic_s
        self._away_since_s: float | None = None
        self._wait_s = COORDINATOR_AWAY_S

    def is_due(self) -> bool:
        """Look once; true when it has been away for long enough, and then not again for twice as long."""
        now_s = self._monotonic_s()
        if read_address(self._files.api) is not None:
            self._away_since_s, self._wait_s = None, COORDINATOR_AWAY_S
            return False
        if self._away_since_s is None:
            self._away_since_s = now_s
        if now_s - self._away_since_s < self._wait_s:
            return False
        self._away_since_s, self._wait_s = now_s, min(2 * self._wait_s, LONGEST_AWAY_S)
        return True
