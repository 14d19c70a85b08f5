"""Pseudonyms of users by a keyed hash: a user has one for ever, and only who has the key can tell whose it is."""

from __future__ import annotations

import hashlib
import hmac
import re
from functools import lru_cache

from tidegauge.core.views import OWNER_SEPARATOR

KEY_BYTES = 32
PREFIX = "user-"
_HEX_CHARS = 12
"""48 bits: two of 100,000 users share one with a chance of 1 in 50,000."""
_FORM = re.compile(rf"{PREFIX}[0-9a-f]{{{_HEX_CHARS}}}")
_MAX_REMEMBERED = 10_000


class Pseudonyms:
    """Thread-safe."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.of = lru_cache(_MAX_REMEMBERED)(self._of)

    def _of(self, user_name: str) -> str:
        """The pseudonym of a user; of several owners one each."""
        return OWNER_SEPARATOR.join(map(self._of_one, user_name.split(OWNER_SEPARATOR)))

    def _of_one(self, name: str) -> str:
        digest = hmac.new(self._key, name.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()
        return f"{PREFIX}{digest[:_HEX_CHARS]}"

    def instead_of(self, user_name: str, text: str) -> str:
        """``text`` with the pseudonym where it has the name as a word."""
        return re.sub(rf"(?<![\w]){re.escape(user_name)}(?![\w])", self.of(user_name), text) if user_name else text


def is_pseudonym(text: str) -> bool:
    return _FORM.fullmatch(text) is not None
