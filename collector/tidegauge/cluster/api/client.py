"""The HTTP client of the commands for the coordinator's API. Standard library, no proxies, no redirects.

An API is named by its URL: ``http://…``, ``https://…``, or ``unix:///…/api.sock`` for the socket of this node, which
needs no token because the kernel names the caller (``service_record.local_api``).
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_ERROR_BYTES = 200
LOOKS_LIKE = "it looks like http://127.0.0.1:9495 or https://head.example:9495"


class ApiError(Exception):
    """The API did not answer, or not as ours does. The message names the address and the next step, and no token."""

    def __init__(self, message: str, *, status: int | None = None, refusal: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        """HTTP's, if there was an answer."""
        self.refusal = refusal
        """The API's own sentence why it cannot answer this request (400, 403, 404, 503), if that is what happened."""


class ApiAddressError(ApiError):
    """The URL is not that of an API: nothing was asked."""


@dataclass(frozen=True)
class ApiAccess:
    """Credentials for an API, and the certificates that are trusted to vouch for it."""

    token: str | None = field(default=None, repr=False)
    """A bearer token; ``NAME:PASSWORD`` for basic authentication. ``None``: nothing is shown."""
    ca_file: Path | None = None
    """Certificates that vouch for the API's; ``None``: those that the system trusts."""

    def headers(self) -> dict[str, str]:
        if self.token is None:
            return {}
        if ":" in self.token:
            return {"Authorization": f"Basic {base64.b64encode(self.token.encode()).decode()}"}
        return {"Authorization": f"Bearer {self.token}"}


NO_ACCESS = ApiAccess()


def get(api_url: str, path: str, *, timeout_s: float = TIMEOUT_S, access: ApiAccess = NO_ACCESS) -> dict[str, Any]:
    """The JSON object at ``path``. Raises ``ApiError``."""
    return _object(api_url, path, get_bytes(api_url, path, timeout_s=timeout_s, access=access))


def send(
    api_url: str, path: str, fields: Mapping[str, str], *, timeout_s: float = TIMEOUT_S, access: ApiAccess = NO_ACCESS
) -> dict[str, Any]:
    """The JSON object that answers a form of these fields. Raises ``ApiError``."""
    form = urlencode(fields, errors="replace").encode()
    return _object(api_url, path, get_bytes(api_url, path, timeout_s=timeout_s, access=access, form=form))


def _object(api_url: str, path: str, body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise ApiError(f"{api_url}{path}: unexpected answer, not from Tidegauge: {error}") from error
    if not isinstance(value, dict):
        raise ApiError(f"{api_url}{path}: unexpected answer, not from Tidegauge")
    return value


def get_bytes(
    api_url: str, path: str, *, timeout_s: float = TIMEOUT_S, access: ApiAccess = NO_ACCESS, form: bytes | None = None
) -> bytes:
    """The body that answers a GET, or a POST of ``form``. Raises ``ApiError``."""
    connection = _connection(api_url, timeout_s, access)
    headers = access.headers()
    try:
        if form is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, form, {**headers, "Content-Type": "application/x-www-form-urlencoded"})
        answer = connection.getresponse()
        body = answer.read(MAX_ANSWER_BYTES)
        if answer.status != 200:
            raise _refused(api_url, path, answer.status, body, access)
    except ssl.SSLError as error:
        raise ApiError(_tls_words(api_url, error, access)) from error
    except (OSError, http.client.HTTPException) as error:
        raise ApiError(f"no answer from {api_url}: {error or type(error).__name__}{_hint(api_url, error)}") from error
    finally:
        connection.close()
    return body


def _connection(api_url: str, timeout_s: float, access: ApiAccess) -> http.client.HTTPConnection:
    """Not urllib, which would ask the proxy of http_proxy for an address that only this machine knows."""
    try:
        parts = urlsplit(api_url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ApiAddressError(f"{api_url!r} is not an API address; {LOOKS_LIKE}") from None
    if parts.username is not None or parts.password is not None:
        # Whatever is in a command line is to be read by everybody on the machine; and it is not repeated here.
        raise ApiAddressError("an API address has no user name or password: put the token in TIDEGAUGE_API_TOKEN_FILE")
    if parts.scheme == "unix" and parts.path.startswith("/") and not parts.netloc:
        return _UnixConnection(Path(unquote(parts.path)), timeout_s)
    if parts.scheme not in ("http", "https") or not host:
        raise ApiAddressError(f"{api_url!r} is not an API address; {LOOKS_LIKE}")
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port or 80, timeout=timeout_s)
    return http.client.HTTPSConnection(host, port or 443, timeout=timeout_s, context=_context(access))


def _context(access: ApiAccess) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ApiError(
            f"api_ca_file {access.ca_file} cannot be used: {error.strerror or 'it contains no certificate'}"
        ) from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        # By the folder's descriptor: the whole name may be longer than the 107 bytes that unix(7) allows.
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)


def _refused(api_url: str, path: str, status: int, body: bytes, access: ApiAccess) -> ApiError:
    refusal = _refusal(body) if status in (400, 403, 404, 421, 503) else None
    if status == 401:
        return ApiError(_who_words(api_url, access), status=status)
    text = body[:MAX_ERROR_BYTES].decode(errors="replace")
    return ApiError(f"{api_url}{path}: HTTP {status}: {text}", status=status, refusal=refusal)


def _who_words(api_url: str, access: ApiAccess) -> str:
    if access.token is not None:
        return (
            f"{api_url} rejects the token (TIDEGAUGE_API_TOKEN_FILE or TIDEGAUGE_API_TOKEN): ask an admin for "
            "a new one, made with `tidegauge config token NAME`"
        )
    return (
        f"{api_url} requires a token: put it into a file (chmod 600) and set TIDEGAUGE_API_TOKEN_FILE to "
        "that file; an admin makes one with `tidegauge config token NAME`"
    )


def _hint(api_url: str, error: Exception) -> str:
    """What to check after this error. A server that speaks TLS hangs up on a request without TLS, or answers with bytes
    that are not HTTP."""
    if isinstance(error, ConnectionRefusedError) and not api_url.startswith("unix:"):
        return "; check that the service is up, the port (default 9495), and that listen_host is not loopback only"
    is_cut_off = isinstance(error, (ConnectionResetError, http.client.BadStatusLine))
    return "; the server may use TLS: try https://" if is_cut_off and api_url.startswith("http://") else ""


def _tls_words(api_url: str, error: ssl.SSLError, access: ApiAccess) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"{error.verify_message}".rstrip(".")
        if error.verify_code in (62, 64):  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            return f"the certificate of {api_url} is for another name ({what}): use a name that it covers"
        tried = f"{access.ca_file} does not cover it" if access.ca_file else "set its authority's certificate"
        return f"the certificate of {api_url} is not trusted here ({what}): {tried}; set TIDEGAUGE_API_CA_FILE"
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return f"{api_url} does not speak TLS: is it http:// instead of https://?"
    if error.reason and "CERTIFICATE_REQUIRED" in error.reason:
        return f"{api_url} requires client certificates, which commands do not have: run this on the head"
    return f"{api_url} does not answer over TLS: {error.reason or error}"


def _refusal(body: bytes) -> str | None:
    try:
        raw = json.loads(body)
        # An API of another version that lacks the page lists the pages that it has: that is no answer about the thing.
        return None if "pages" in raw else str(raw["error"])
    except (ValueError, KeyError, TypeError):
        return None
