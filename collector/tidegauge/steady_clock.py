"""Unix clocks for ages of files, incidents and actions: setting the host's clock moves them little or not at all."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidegauge.files import write_state

_log = logging.getLogger(__name__)

MAX_AHEAD_S = 86_400.0
SAVE_EVERY_S = 600.0
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """An id that changes at every boot. Start ticks count from the boot, so a pid and its ticks mean nothing after the
    next one."""
    return BOOT_ID.read_text().strip()


def boottime_s() -> float:
    """Seconds since the boot, those of a suspended host included; no setting of the clock changes it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """A thread-safe Unix clock for the ages of files, which a wrong host clock can move by a day at most.

    While the host is up, time is counted from its boot (CLOCK_BOOTTIME), also across restarts of the process. The first
    start after a boot takes the host's time, limited to between the last known time and a day after it: the time for
    which a host was off does not age its files. Without a readable state file ``path`` the clock starts at host time.
    """

    def __init__(
        self,
        path: Path,
        *,
        wall_s: Callable[[], float] = time.time,
        since_boot_s: Callable[[], float] = boottime_s,
        boot_id: Callable[[], str] = read_boot_id,
    ) -> None:
        self._path = path
        self._since_boot_s = since_boot_s
        self._boot_id = boot_id()
        self._lock = threading.Lock()
        self._failing = False
        self._offset_s = self._begin_s(wall_s()) - since_boot_s()
        self._saved_s = float("-inf")

    def unix_s(self) -> float:
        """Unix seconds, as far as the host's clock was right when they were first counted."""
        with self._lock:
            since_boot_s = self._since_boot_s()
            now_s = since_boot_s + self._offset_s
            if since_boot_s - self._saved_s >= SAVE_EVERY_S:
                self._saved_s = since_boot_s
                self._save(now_s, since_boot_s)
        return now_s

    def _begin_s(self, wall_s: float) -> float:
        try:
            kept = json.loads(self._path.read_bytes())
            last_s, since_boot_s, boot_id = float(kept["unix_s"]), float(kept["since_boot_s"]), str(kept["boot_id"])
        except FileNotFoundError:
            return wall_s
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("%s cannot be used (%s): time begins at the host's clock", self._path, error)
            return wall_s
        if boot_id == self._boot_id:
            return last_s + max(0.0, self._since_boot_s() - since_boot_s)
        return min(max(wall_s, last_s), last_s + MAX_AHEAD_S)

    def _save(self, now_s: float, since_boot_s: float) -> None:
        kept = {"unix_s": now_s, "since_boot_s": since_boot_s, "boot_id": self._boot_id}
        try:
            write_state(self._path, json.dumps(kept).encode())
        except OSError as error:
            if not self._failing:
                _log.warning("%s cannot be written: %s", self._path, error.strerror or error)
            self._failing = True
        else:
            self._failing = False


class PolicyClock:
    """The clock of incidents and actions: Unix seconds that never run backwards, nor jump while the process runs.

    Nobody widens a limit such as "20 actions an hour" by setting the host's clock: time passes as on the monotonic
    clock. It starts at the wall clock, but not before ``not_before_s``, the newest time in the database (``None``: the
    database is empty).
    """

    def __init__(
        self, *, wall_s: Callable[[], float], monotonic_s: Callable[[], float], not_before_s: float | None = None
    ) -> None:
        self._monotonic_s = monotonic_s
        begin_s = wall_s()
        self._offset_s = (begin_s if not_before_s is None else max(begin_s, not_before_s)) - monotonic_s()

    def now_s(self) -> float:
        """Unix seconds, as far as the host's clock was right when the process began."""
        return self._monotonic_s() + self._offset_s
