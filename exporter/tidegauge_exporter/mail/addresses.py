"""Which addresses there are: of the sender, and of a user of the cluster. Pure.

The name is the kernel's owner of the process, never what a job says of itself: nobody gets somebody else's mail by
claiming a name.
"""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_WORD}(?:\.{_WORD})*")
"""As host names are written; one word is enough inside a cluster: ``head``."""
_LOCAL_PART: Final = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_{|}~-]+)*")
"""``dot-atom`` of RFC 5322, without the back tick: 64 characters at most (RFC 5321, 4.5.3.1.1)."""
_LOGIN: Final = re.compile(r"(?=.{1,64}\Z)[A-Za-z0-9_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
"""A login name that can stand before the @ of an address. ``root@elsewhere`` and ``-x`` are none."""


def sender_address(address: str) -> str:
    """The address as it is. Raises ``ValueError`` if it is none."""
    local_part, at, domain = address.rpartition("@")
    if not (at and _LOCAL_PART.fullmatch(local_part) and _is_domain(domain)):
        raise ValueError(f"mail_from is {address!r}, and no mail address: it looks like tidegauge@example.org")
    return address


def recipient_domain(domain: str) -> str:
    """The domain without an @ in front. Raises ``ValueError`` if it is none."""
    bare = domain.removeprefix("@")
    if not _is_domain(bare):
        raise ValueError(f"mail_domain is {domain!r}, and no domain: it looks like example.org")
    return bare


def address_of(user_name: str, domain: str | None) -> str | None:
    """``ada@example.org``; without a domain ``ada``, which the mail server completes. ``None``: nobody is known by this
    name. A bare number is a uid without an entry in passwd, and could be anybody's address elsewhere."""
    if not _LOGIN.fullmatch(user_name) or user_name.isdigit():
        return None
    return user_name if domain is None else f"{user_name}@{domain}"


def _is_domain(text: str) -> bool:
    return len(text) <= 253 and _DOMAIN.fullmatch(text) is not None
