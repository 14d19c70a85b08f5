"""Attempts at many small requests to one service, so that a refused one does not hold up the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 300.0
FORGET_S = 3 * AGAIN_AFTER_S
"""Age after which a refused attempt is forgotten."""
LOOK_AGAIN_S = 5.0
MAX_REFUSALS = 3
"""Refusals after which a round without success ends."""


def is_due(since_unix_s: float, every_s: float, *, now_unix_s: float) -> bool:
    """True if ``every_s`` has passed, or the clock was set back behind ``since_unix_s``."""
    return not 0.0 <= now_unix_s - since_unix_s < every_s


class Attempts:
    """Rounds of attempts in one thread, each ``with attempts.round(now): attempts.make(...)``.

    An attempt that is refused or fails by a defect is repeated every five minutes, with one line in the log. Until the
    next success a round ends with ``RetryLaterError``, so that the problem is seen, or with ``RefusedError`` after
    ``MAX_REFUSALS``; these attempts come last from then on. ``RetryLaterError`` of an attempt ends its round at once.
    """

    def __init__(self) -> None:
        self._refused_at: dict[str, float] = {}
        """Time of the latest refusal of each attempt that has not succeeded since."""
        self._suspects: dict[str, float] = {}
        """Attempts over which a round ended, and when."""
        self._last: list[tuple[str, Callable[[], bool]]] = []
        """Suspects of this round, which come last."""
        self._now_unix_s = 0.0
        self._refusals: list[str] = []
        """Refusals in this round without a success."""
        self._trouble: RefusedError | None = None
        """The latest refusal without a success since."""

    @contextmanager
    def round(self, now_unix_s: float) -> Iterator[None]:
        self._now_unix_s, self._refusals, self._last = now_unix_s, [], []
        self._refused_at, self._suspects = (
            {what: at for what, at in kept.items() if not is_due(at, FORGET_S, now_unix_s=now_unix_s)}
            for kept in (self._refused_at, self._suspects)
        )
        if not self._refused_at:
            self._trouble = None
        yield
        for what, attempt in self._last:
            self._try(what, attempt)
        if self._trouble is not None:
            raise RetryLaterError(str(self._trouble), after_s=LOOK_AGAIN_S)

    def make(self, what: str, attempt: Callable[[], bool]) -> None:
        """Call ``attempt`` unless ``what`` was refused a moment ago; it returns True if it sent a request. ``what``
        names the attempt, also in the log."""
        if what in self._suspects:
            self._last.append((what, attempt))
        else:
            self._try(what, attempt)

    def _try(self, what: str, attempt: Callable[[], bool]) -> None:
        refused_at = self._refused_at.get(what)
        if refused_at is not None and not is_due(refused_at, AGAIN_AFTER_S, now_unix_s=self._now_unix_s):
            return
        try:
            taken = attempt()
        except RetryLaterError:
            raise
        except RefusedError as error:
            if refused_at is None:
                log.warning("%s was refused, and is tried again every %.0f s: %s", what, AGAIN_AFTER_S, error)
            self._refused_at[what] = self._now_unix_s
            self._trouble = error
            self._refusals.append(what)
            if len(self._refusals) == MAX_REFUSALS:
                self._refused_at.clear()  # whoever called waits as a whole
                self._suspects.update(dict.fromkeys(self._refusals, self._now_unix_s))
                raise
        except Exception:  # a defect that one incident brings out must not silence all others
            if refused_at is None:
                log.exception("%s failed, and is tried again every %.0f s", what, AGAIN_AFTER_S)
            self._refused_at[what] = self._now_unix_s
        else:
            self._refused_at.pop(what, None)
            if taken:
                self._suspects.pop(what, None)
                self._refusals, self._trouble = [], None
