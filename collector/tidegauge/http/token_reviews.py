"""Bearer tokens that somebody else checks: the port of the API server's ``TokenReview``, and a short memory before it.

``tidegauge_scheduler_hooks.kubernetes.token_reviewer`` implements the port.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tidegauge.http.access import Refusal
from tidegauge.http.passwords import TryLimit

KEPT_S = 60.0
"""For which a token counts after it was reviewed: it may have been taken back since."""
REFUSED_KEPT_S = 10.0
MAX_KEPT = 1024
"""Reviews, and as many refusals; the oldest are forgotten."""
MAX_AT_ONCE = 4
MAX_TOKEN_CHARS = 8000
"""Tokens of an identity provider with many groups have thousands; those of service accounts about 1,000."""
PEER_BURST, PEER_EVERY_S, ALL_BURST, ALL_EVERY_S = 10, 1.0, 50, 0.1
"""Reviews that are no repetition: ten a second over all addresses, which an API server does not notice."""
UNAVAILABLE = (
    "the Kubernetes API server cannot check tokens just now: try again, or use another way in; the coordinator's log "
    "says why"
)
BUSY = "too many tokens to check at once: try again in some seconds"


class ReviewedUser(NamedTuple):
    """Whose token it is, as the API server says."""

    username: str
    groups: frozenset[str]
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """What else an authenticator says, by name: nothing here but for whoever decides about rights."""


class ReviewUnavailableError(Exception):
    """The token could not be reviewed; the message says why, without the token."""


class TokenReviewer(Protocol):
    """Reviews tokens. Thread-safe; every call ends within seconds."""

    def review(self, token: str) -> ReviewedUser | None:
        """``None`` for a token that does not count. Raises ``ReviewUnavailableError``."""


class TokenReviews:
    """Reviews of tokens, remembered for ``KEPT_S`` by a digest. Thread-safe."""

    def __init__(self, reviewer: TokenReviewer, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._reviewer = reviewer
        self._monotonic_s = monotonic_s
        self._key = os.urandom(32)
        self._kept: OrderedDict[bytes, tuple[ReviewedUser, float]] = OrderedDict()
        """With the time until which it counts."""
        self._refused: OrderedDict[bytes, float] = OrderedDict()
        self._tries = TryLimit(
            peer_burst=PEER_BURST, peer_every_s=PEER_EVERY_S, all_burst=ALL_BURST, all_every_s=ALL_EVERY_S,
            now_s=monotonic_s(),
        )  # fmt: skip
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_AT_ONCE)

    def user(self, token: str, peer: str) -> ReviewedUser | Refusal | None:
        """``None`` for a token that does not count; a refusal where that is not known now."""
        if not token or len(token) > MAX_TOKEN_CHARS or not (token.isascii() and token.isprintable()) or " " in token:
            return None
        digest = hmac.new(self._key, token.encode(), hashlib.sha256).digest()
        now_s = self._monotonic_s()
        with self._lock:
            kept = self._kept.get(digest)
            if kept is not None and now_s < kept[1]:
                return kept[0]
            if now_s < self._refused.get(digest, now_s):
                return None
            may_try = self._tries.take(peer, now_s)
        if not may_try or not self._slots.acquire(blocking=False):
            return Refusal(429, BUSY, (("Retry-After", "5"),))
        try:
            user = self._reviewer.review(token)
        except ReviewUnavailableError:
            return Refusal(503, UNAVAILABLE)
        finally:
            self._slots.release()
        with self._lock:
            self._remember(digest, user, now_s)
        return user

    def _remember(self, digest: bytes, user: ReviewedUser | None, asked_s: float) -> None:
        self._kept.pop(digest, None)
        self._refused.pop(digest, None)
        if user is None:
            self._refused[digest] = asked_s + REFUSED_KEPT_S
        else:
            self._kept[digest] = user, asked_s + KEPT_S
        for table in (self._kept, self._refused):
            if len(table) > MAX_KEPT:
                table.popitem(last=False)
