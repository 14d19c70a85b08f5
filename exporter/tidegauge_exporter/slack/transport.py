"""One HTTP request to Slack: through the site's proxy or directly, within a time, and to nobody else.

``slack_sdk`` has its own idea of proxies (it does not know ``NO_PROXY``, and takes ``HTTP_PROXY`` for https), follows
redirections with the token in hand, and waits for as long as bytes arrive. Standard library only.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from http.client import HTTPMessage, HTTPResponse
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from urllib.request import (
    BaseHandler,
    HTTPErrorProcessor,
    ProxyHandler,
    Request,
    build_opener,
)

MOST_BYTES: Final = 4 * 1024 * 1024
"""Slack's answers to what we ask are some kilobytes."""


class HttpReply(NamedTuple):
    """Whatever came back, refusals included."""

    status: int
    headers: HTTPMessage
    body: str


def send(request: Request, *, timeout_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> HttpReply:
    """Raises ``OSError`` (``TimeoutError`` once the answer takes longer than ``timeout_s``) and ``HTTPException``."""
    if not request.full_url.startswith(("http://", "https://")):
        raise OSError("an address that is no web address")
    ends_s = monotonic_s() + timeout_s
    opener = build_opener(*_handlers(request.full_url))
    with opener.open(request, timeout=timeout_s) as response:
        assert isinstance(response, HTTPResponse)
        body = bytearray()
        while piece := response.read1(65536):
            body += piece
            if monotonic_s() > ends_s:
                raise TimeoutError("the answer does not end")
            if len(body) > MOST_BYTES:
                raise OSError("the answer is too long to be one of Slack's")
        return HttpReply(response.status, response.headers, body.decode(errors="replace"))


def is_loopback(url: str) -> bool:
    """Whether the address is this machine: a gateway beside us, or a test."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Untouched(HTTPErrorProcessor):
    """Every answer is an answer: no redirection is followed, no status becomes an exception."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:  # noqa: ARG002 - as inherited
        return response

    https_response = http_response


def _handlers(url: str) -> tuple[BaseHandler, ...]:
    """No proxy is asked for what is on this machine; else the environment decides, ``NO_PROXY`` included."""
    return (_Untouched(), ProxyHandler({})) if is_loopback(url) else (_Untouched(),)
