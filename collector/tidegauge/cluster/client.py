"""The commands' side of the HTTP API: one GET, mostly JSON in return. Standard library, no proxies, no redirects."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
LONGEST_ERROR = 200


class ApiError(Exception):
    """The API did not answer, or not as ours does; the message names the address."""

    def __init__(self, message: str, *, status: int | None = None, refusal: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP's, if there was an answer."""
        self.refusal = refusal
        """The API's own sentence why it cannot answer this request (400, 404, 503), if that is what happened."""


def get(api_url: str, path: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The JSON object at ``path``. Raises ``ApiError``."""
    try:
        value = json.loads(get_bytes(api_url, path, timeout_s=timeout_s))
    except ValueError as error:
        raise ApiError(f"{api_url}{path} does not answer as Tidegauge does: {error}") from error
    if not isinstance(value, dict):
        raise ApiError(f"{api_url}{path} does not answer as Tidegauge does")
    return value


def get_bytes(api_url: str, path: str, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """What is at ``path``, as it is. Raises ``ApiError``."""
    parts = urlsplit(api_url)
    if parts.scheme != "http" or not parts.hostname:
        raise ApiError(f"{api_url!r} is not the address of an API; it looks like http://127.0.0.1:9495")
    # Not urllib: it would ask the proxy of http_proxy for an address that only this machine knows.
    connection = http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER_BYTES)
        if answer.status != 200:
            text = body[:LONGEST_ERROR].decode(errors="replace")
            refusal = _refusal(body) if answer.status in (400, 404, 503) else None
            message = f"{api_url}{path} answers {answer.status}: {text}"
            raise ApiError(message, status=answer.status, refusal=refusal)
    except (OSError, http.client.HTTPException) as error:
        raise ApiError(f"{api_url} does not answer: {error}") from error
    finally:
        connection.close()
    return body


def _refusal(body: bytes) -> str | None:
    try:
        raw = json.loads(body)
        # An API of another version that lacks the page lists the pages that it has: that is no answer about the thing.
        return None if "pages" in raw else str(raw["error"])
    except (ValueError, KeyError, TypeError):
        return None
