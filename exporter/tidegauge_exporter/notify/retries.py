"""Attempts at many small requests to one service, so that a refused one does not hold up the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

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


class _Pause(NamedTuple):
    """A time in which no request of a kind is made."""

    since_unix_s: float
    for_s: float
    why: str


class Attempts:
    """Rounds of attempts in one thread, each ``with attempts.round(now): attempts.make(...)``.

    An attempt that is refused or fails by a defect is repeated every five minutes, with one line in the log. Until the
    next success a round ends with ``RetryLaterError``, so that the problem is seen, or with ``RefusedError`` after
    ``MAX_REFUSALS``; these attempts come last from then on. ``RetryLaterError`` of an attempt pauses all attempts of
    its kind for as long as it says; those of other kinds go on, and the round ends with ``RetryLaterError``.
    """

    def __init__(self) -> None:
        self._refused_at: dict[str, float] = {}
        """Time of the latest refusal of each attempt that has not succeeded since."""
        self._suspects: dict[str, float] = {}
        """Attempts over which a round ended, and when."""
        self._last: list[tuple[str, Callable[[], bool], str]] = []
        """Suspects of this round, which come last."""
        self._now_unix_s = 0.0
        self._refusals: list[str] = []
        """Refusals in this round without a success."""
        self._trouble: RefusedError | None = None
        """The latest refusal without a success since."""
        self._pauses: dict[str, _Pause] = {}
        """Pauses by kind, the longest ago first."""

    @contextmanager
    def round(self, now_unix_s: float) -> Iterator[None]:
        self._now_unix_s, self._refusals, self._last = now_unix_s, [], []
        self._refused_at, self._suspects = (
            {what: at for what, at in kept.items() if not is_due(at, FORGET_S, now_unix_s=now_unix_s)}
            for kept in (self._refused_at, self._suspects)
        )
        if not self._refused_at:
            self._trouble = None
        self._pauses = {
            kind: pause
            for kind, pause in self._pauses.items()
            if not is_due(pause.since_unix_s, pause.for_s, now_unix_s=now_unix_s)
        }
        yield
        for what, attempt, kind in self._last:
            self._try(what, attempt, kind)
        if self._pauses:
            left_s = min(pause.since_unix_s + pause.for_s - now_unix_s for pause in self._pauses.values())
            why = next(iter(self._pauses.values())).why
            raise RetryLaterError(why, after_s=min(left_s, LOOK_AGAIN_S))
        if self._trouble is not None:
            raise RetryLaterError(str(self._trouble), after_s=LOOK_AGAIN_S)

    def make(self, what: str, attempt: Callable[[], bool], *, kind: str = "requests") -> None:
        """Call ``attempt`` unless ``what`` was refused a moment ago, or its kind is paused; it returns True if it sent
        a request. ``what`` names the attempt, also in the log. Attempts of one ``kind`` call the same method of the
        service."""
        if what in self._suspects:
            self._last.append((what, attempt, kind))
        else:
            self._try(what, attempt, kind)

    def _try(self, what: str, attempt: Callable[[], bool], kind: str) -> None:
        if kind in self._pauses:
            return
        refused_at = self._refused_at.get(what)
        if refused_at is not None and not is_due(refused_at, AGAIN_AFTER_S, now_unix_s=self._now_unix_s):
            return
        try:
            taken = attempt()
        except RetryLaterError as error:
            self._pauses[kind] = _Pause(self._now_unix_s, error.after_s, str(error))
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
