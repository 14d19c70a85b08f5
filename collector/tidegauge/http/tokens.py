"""Bearer tokens for people and scripts: a file of names and digests, one per line. exporter-toolkit has none.

The file holds ``NAME:SHA256`` lines, which do not reveal tokens. A token has 256 random bits, so that a quick digest
protects it as well as a slow one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tidegauge.secrets import SecretError, read_lines

PREFIX = "tg_"
"""Of every token, so that people and scanners of repositories see what it is."""
MAX_TOKENS = 10_000
_LINE = re.compile(r"([^:\s#][^:\s]{0,127}):([0-9a-f]{64})")


class ApiToken(NamedTuple):
    """A line of the file."""

    name: str
    digest: bytes

    def __repr__(self) -> str:
        return f"ApiToken({self.name!r})"


def make_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def token_line(name: str, token: str) -> str:
    """The line for the file. Raises ``ValueError`` for an invalid name."""
    line = f"{name}:{hashlib.sha256(token.encode()).hexdigest()}"
    if not name.isprintable() or not _LINE.fullmatch(line):
        raise ValueError("a name has 1 to 128 printable characters, and no colon or space")
    return line


def read_tokens(file: Path) -> tuple[ApiToken, ...]:
    """The tokens in ``file``; empty lines and comments (``#``) are ignored, and a name may occur twice.

    Raises ``SecretError``, also for a file that others may read or change.
    """
    tokens = []
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or not found[1].isprintable():
            # Nothing of the line is quoted: somebody may have put the token itself there.
            raise SecretError(f"{file}, line {number}: not NAME:DIGEST as `tidegauge config token NAME` prints it")
        tokens.append(ApiToken(found[1], bytes.fromhex(found[2])))
    if len(tokens) > MAX_TOKENS:
        raise SecretError(f"{file} holds more than {MAX_TOKENS} tokens")
    return tuple(tokens)


def name_of(token: str, tokens: Sequence[ApiToken]) -> str | None:
    """The name of a token."""
    return name_of_digest(digest_of(token), tokens)


def digest_of(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()


def name_of_digest(shown: bytes, tokens: Sequence[ApiToken]) -> str | None:
    """The name of the token with this digest. Compares with all, so that the time reveals nothing."""
    name = None
    for one in tokens:
        if hmac.compare_digest(one.digest, shown):
            name = one.name
    return name
