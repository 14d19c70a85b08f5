"""Which page a browser had a form from that it sends to the HTTP API: one of this API, or one of another site."""

from __future__ import annotations

from email.message import Message
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def is_from_here(headers: Message[str, str], public_url: str | None) -> bool:
    """Whether a form may be taken: else any page on the web could have a browser that knows a password send one.

    ``Origin``, and without it ``Referer``, has to name the host and port of ``Host`` or of ``public_url``, which is
    where a proxy that changes ``Host`` is reached. ``null`` is what a browser says that must not tell. Commands and
    scripts send neither. ``Sec-Fetch-Site`` comes over TLS and to localhost alone.
    """
    if headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        return False
    sender = headers.get("Origin", headers.get("Referer"))
    if sender is None:
        return True
    here = f"{sender.partition(':')[0]}://{headers.get('Host', '')}"
    place = _place(sender)
    return place is not None and place in (_place(here), _place(public_url or ""))


def _place(url: str) -> tuple[str, int] | None:
    """Its host and port; ``None``: it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    return (parts.hostname, port) if parts.hostname and port else None
