"""The commands' side of the HTTP API: one GET, mostly JSON in return. Standard library, no proxies, no redirects."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class ApiError(Exception):
    """The API did not answer, or not as ours does; the message names the address."""


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
            raise ApiError(f"{api_url}{path} answers {answer.status}: {body[:200].decode(errors='replace')}")
    except (OSError, http.client.HTTPException) as error:
        raise ApiError(f"{api_url} does not answer: {error}") from error
    finally:
        connection.close()
    return body
