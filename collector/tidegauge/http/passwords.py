"""Checks names and passwords (bcrypt): results are cached for a while, and repeated wrong ones have to wait.

A check at cost 10 takes 50 ms of a core. A scrape every 15 s and a ``top`` every second must not pay that each time,
and a client that guesses must not keep the coordinator busy.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import Enum

import bcrypt

MAX_REMEMBERED = 256
"""Right answers, and as many wrong ones; the longest unused are forgotten. exporter-toolkit remembers 100 in all."""
PEER_BURST, PEER_EVERY_S = 5, 2.0
"""Checks that are no repetition, of one address: five, then one every two seconds."""
ALL_BURST, ALL_EVERY_S = 20, 0.5
"""The same over all addresses: two a second are a tenth of a core at cost 10."""
MAX_WAITING = 4
"""For the check under way, which takes seconds where hashes have a high cost. Each of them holds a connection."""
MAX_PEERS = 1024
MAX_PASSWORD_BYTES = 72
"""bcrypt looks at no more."""
_NOBODY = b"$2b$10$WPWVvOqCwjq/4khyypxWw.k.ULcq5OT2ORyevXCeu/qdZ7w4fyaky"
"""Of no password that anybody knows."""
_COST = slice(4, 6)
"""Where a hash has its cost."""


class Password(Enum):
    """The result of a check."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_NOW = "not now"
    """It was not checked: too many others were, lately."""


class Bucket:
    """A token bucket of at most ``burst``, refilled by one every ``every_s``; not thread-safe."""

    def __init__(self, burst: float, every_s: float, now_s: float) -> None:
        self._burst = burst
        self._every_s = every_s
        self._left = float(burst)
        self._at_s = now_s

    def take(self, now_s: float) -> bool:
        self._left = min(self._burst, self._left + (now_s - self._at_s) / self._every_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class TryLimit:
    """Limits tries of each address, and of all together; not thread-safe."""

    def __init__(
        self, *, peer_burst: float, peer_every_s: float, all_burst: float, all_every_s: float, now_s: float
    ) -> None:
        self._peer_burst, self._peer_every_s = peer_burst, peer_every_s
        self._peers: OrderedDict[str, Bucket] = OrderedDict()
        self._all = Bucket(all_burst, all_every_s, now_s)

    def take(self, peer: str, now_s: float) -> bool:
        """Whether this address may try now."""
        counted_as = _counted_as(peer)
        bucket = self._peers.pop(counted_as, None) or Bucket(self._peer_burst, self._peer_every_s, now_s)
        self._peers[counted_as] = bucket
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        return bucket.take(now_s) and self._all.take(now_s)


class Passwords:
    """Thread-safe. It makes one check at a time: several would only share the core."""

    def __init__(
        self,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        check: Callable[[bytes, bytes], bool] = bcrypt.checkpw,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._check = check
        self._key = os.urandom(32)
        """Of the digests that are kept instead of passwords; of this process alone."""
        self._known: Mapping[Password, OrderedDict[bytes, None]] = {
            Password.RIGHT: OrderedDict(), Password.WRONG: OrderedDict(),
        }  # fmt: skip
        self._tries = TryLimit(
            peer_burst=PEER_BURST, peer_every_s=PEER_EVERY_S, all_burst=ALL_BURST, all_every_s=ALL_EVERY_S,
            now_s=monotonic_s(),
        )  # fmt: skip
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._at_it = 0
        """Threads that check or wait until they may."""
        self._dummy: tuple[Mapping[str, bytes], bytes] = ({}, _NOBODY)

    @property
    def waiting(self) -> int:
        """Threads that wait until they may check."""
        return max(self._at_it - 1, 0)

    def check(self, users: Mapping[str, bytes], name: str, password: bytes, *, peer: str) -> Password:
        hashed = users.get(name, self._nobody(users))
        digest = self._digest(name.encode(errors="replace"), hashed, password)
        with self._lock:
            known = self._remembered(digest)
            if known is not None:
                return known
            if self._at_it > MAX_WAITING or not self._tries.take(peer, self._monotonic_s()):
                return Password.NOT_NOW
            self._at_it += 1
        try:
            return self._checked(digest, password, hashed, is_user=name in users)
        finally:
            with self._lock:
                self._at_it -= 1

    def _checked(self, digest: bytes, password: bytes, hashed: bytes, *, is_user: bool) -> Password:
        with self._one_at_a_time:
            with self._lock:
                known = self._remembered(digest)  # another thread may have asked the same meanwhile
            is_right = self._is_right(password, hashed) if known is None else known is Password.RIGHT
            answer = Password.RIGHT if is_right and is_user else Password.WRONG
            with self._lock:
                self._remember(digest, answer)
        return answer

    def _nobody(self, users: Mapping[str, bytes]) -> bytes:
        """The hash for unknown names, chosen once per file: the time of a check must not reveal names either."""
        of, dummy = self._dummy
        if of is not users:
            dummy = dummy_hash(users)
            self._dummy = users, dummy
        return dummy

    def _is_right(self, password: bytes, hashed: bytes) -> bool:
        try:
            return self._check(password[:MAX_PASSWORD_BYTES], hashed)
        except ValueError:  # a NUL in it, which no bcrypt takes
            return False

    def _digest(self, *parts: bytes) -> bytes:
        """Depends on the hash too, so that a new password in the file makes the cache forget the old one."""
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self._key, message, hashlib.sha256).digest()

    def _remembered(self, digest: bytes) -> Password | None:
        for answer, digests in self._known.items():
            if digest in digests:
                digests.move_to_end(digest)
                return answer
        return None

    def _remember(self, digest: bytes, answer: Password) -> None:
        digests = self._known[answer]
        digests[digest] = None
        if len(digests) > MAX_REMEMBERED:
            digests.popitem(last=False)


def dummy_hash(users: Mapping[str, bytes]) -> bytes:
    """The hash to check for an unknown name: it takes as long as the most expensive of the known ones."""
    cost = max((hashed[_COST] for hashed in users.values()), default=_NOBODY[_COST])
    return _NOBODY[: _COST.start] + cost + _NOBODY[_COST.stop :]


def _counted_as(peer: str) -> str:
    """The key of an address: IPv6 by its /64, which one client may have in full."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address), 64), strict=False))
