"""What can go wrong with an API server, at a test's word."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from kube_emulator.errors import ApiError


@dataclass
class _Failures:
    code: int
    left: int
    method: str | None
    path: str
    retry_after_s: int | None


_REASONS = {
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "request did not complete within the allotted timeout"),
}


@dataclass
class Faults:
    """Switches; everything works while none is set. Thread-safe. Connections, watches and history are cut by
    ``Emulator`` (``cut_watches``, ``away``, ``compact``)."""

    delay_s: float = 0.0
    """Every answer comes that much later; a watch begins that much later."""
    lose_answers: int = 0
    """So many of the next changes are carried out, and the connection breaks before the answer."""
    _failures: list[_Failures] = field(default_factory=list)
    _touched: list[tuple[str, str]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def fail(
        self, code: int, times: int, *, method: str | None = None, path: str = "", retry_after_s: int | None = None
    ) -> None:
        """The next ``times`` requests (of that method; whose path contains ``path``) are answered so, and not done."""
        with self._lock:
            self._failures.append(_Failures(code, times, method, path, retry_after_s))

    def conflict(self, plural: str, name: str) -> None:
        """Somebody else changes that object just before the next PATCH or PUT of it is carried out."""
        with self._lock:
            self._touched.append((plural, name))

    def clear(self) -> None:
        with self._lock:
            self._failures.clear()
            self._touched.clear()
            self.delay_s, self.lose_answers = 0.0, 0

    def failure(self, method: str, path: str) -> ApiError | None:
        """What to answer instead of doing it."""
        with self._lock:
            for failures in self._failures:
                if failures.left and failures.method in (None, method) and failures.path in path:
                    failures.left -= 1
                    reason, message = _REASONS[failures.code]
                    after_s = failures.retry_after_s
                    headers = {} if after_s is None else {"Retry-After": str(after_s)}
                    details = {} if after_s is None else {"retryAfterSeconds": after_s}
                    return ApiError(failures.code, reason, message, details=details, headers=headers)
        return None

    def takes_conflict(self, plural: str, name: str) -> bool:
        with self._lock:
            if (plural, name) in self._touched:
                self._touched.remove((plural, name))
                return True
        return False

    def takes_answer(self) -> bool:
        with self._lock:
            if self.lose_answers:
                self.lose_answers -= 1
                return True
        return False
