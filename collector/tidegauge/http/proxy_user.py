"""The user that a trusted proxy names in a header, as oauth2-proxy, nginx and Apache do.

A header from any other address is ignored: anybody could send it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from email.message import Message

from tidegauge.http.access import Refusal

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
"""POSIX names and mail addresses. Not ``(null)``, which Apache sends of a user that it does not know."""
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_NEVER = frozenset({"authorization", "cookie", "host", "origin", "referer", "content-length", "content-type", "accept"})
"""Headers that every client sends, or that mean something else here."""
NO_USER = (
    "the proxy in front of this service sent no usable user name: one header, with a name of 1 to 128 letters, "
    "digits and ._@+-; an admin finds how to set it up in docs/web_access.md"
)


def parse_header(name: str) -> str:
    """Raises ``ValueError`` for a header that cannot carry a user."""
    if not _HEADER.fullmatch(name) or name.lower() in _NEVER:
        raise ValueError("must be the name of a header that the proxy alone sets, such as X-Forwarded-User")
    return name


def parse_networks(entries: Iterable[str]) -> tuple[Network, ...]:
    """Addresses and CIDRs. Raises ``ValueError`` for another text, and for a network of everybody."""
    networks = []
    for entry in entries:
        try:
            network = ipaddress.ip_network(entry)
        except ValueError:
            raise ValueError(f"{entry!r} is no address and no CIDR, such as 10.0.0.7 or 10.0.0.0/28") from None
        if network.prefixlen == 0:
            raise ValueError(f"{entry} is every address: whoever sends the header would be believed")
        networks.append(network)
    return tuple(networks)


class ProxyUser:
    """Reads the header ``header`` of requests from ``trusted`` addresses; of names at ``domain`` the part before it is
    the user's name."""

    def __init__(self, header: str, trusted: tuple[Network, ...], *, domain: str | None = None) -> None:
        self._header = header
        self._trusted = trusted
        self._at_domain = None if domain is None else f"@{domain.lower()}"

    def user(self, headers: Message[str, str], peer: str) -> str | Refusal | None:
        """The user; ``None`` without the header or from an address that is not trusted; else a refusal."""
        given = headers.get_all(self._header)
        if given is None or not self._trusts(peer):
            return None
        if len(given) > 1 or not _NAME.fullmatch(given[0].strip(" \t")):
            return Refusal(400, NO_USER)
        name = given[0].strip(" \t")
        if self._at_domain is None or not name.lower().endswith(self._at_domain):
            return name
        return name[: -len(self._at_domain)] or Refusal(400, NO_USER)

    def _trusts(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        if address.version == 6 and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._trusted)
