"""The clock of incidents and actions: unix seconds that never run backwards and do not jump while the service runs.

Limits such as "20 actions an hour" must not be widened by somebody who sets the host's clock: while the process lives,
time passes as on the monotonic clock; across restarts it begins at the wall clock, but never before the newest time
that was written down.
"""

from __future__ import annotations

from collections.abc import Callable


class PolicyClock:
    """``not_before_s`` is the newest time in the database, ``None`` for an empty one."""

    def __init__(
        self, *, wall_s: Callable[[], float], monotonic_s: Callable[[], float], not_before_s: float | None = None
    ) -> None:
        self._monotonic_s = monotonic_s
        begin_s = wall_s()
        self._offset_s = (begin_s if not_before_s is None else max(begin_s, not_before_s)) - monotonic_s()

    def now_s(self) -> float:
        """Unix seconds, as far as the host's clock was right when the process began."""
        return self._monotonic_s() + self._offset_s
