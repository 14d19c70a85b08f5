"""Grafana's classic HTTP API, by the session of ``grafana_api``. No other module imports ``grafana_api``.

``grafana_api`` 1.0.3 is of 2020: its own calls do not know Grafana's requests of today, so only its transport is used
(base address, token, connection), with payloads of our own. Certificates are always verified; ``REQUESTS_CA_BUNDLE``
and proxies of the environment are honoured. No redirection is followed: the token goes to the configured address and
nowhere else, and is in no message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from grafana_api.grafana_api import GrafanaAPI

from tidegauge_exporter.grafana.values import (
    Annotation,
    DashboardModel,
    DataSource,
    Folder,
    GrafanaRefusedError,
    StoredAnnotation,
    StoredDashboard,
    TakenError,
)
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError, retry_after_s

MAX_ERROR_CHARS = 300
"""Characters of Grafana's answer in an error message."""

ADVICE: Final[Mapping[int, str]] = {
    401: "the token is not one of this Grafana, or was revoked or has expired: make a new one for the service account "
    "and put it into the token file",
    403: "the token's service account may not do this: it needs the role Editor, and Admin to create or change data "
    "sources (or name an existing one by --data-source)",
    404: "is this Grafana's address, with the path if it is served below one?",
    409: "something else has this name already: rename it in Grafana, or remove it",
    412: "somebody else's dashboard or folder has this name, or it was changed just now: rename theirs in Grafana, "
    "then run this again",
}
"""Advice about a refusal, by HTTP status."""


def read_refusal(
    request: str, *, status: int, text: str, headers: Mapping[str, str]
) -> RetryLaterError | RefusedError | None:
    """The error for an answer to ``request`` ("GET URL"); ``None`` for a good one."""
    if status < 300:
        return None
    if status < 400:
        return RefusedError(f"{request} is redirected to {headers.get('Location', 'nowhere')}: set Grafana's "
                            "address to where it really is")  # fmt: skip
    said = f"Grafana refuses {request} with {status}: {_words(text) or 'no reason given'}"
    if status == 429 or status >= 500:
        return RetryLaterError(said, after_s=retry_after_s(headers.get("Retry-After")))
    message = f"{said}; {ADVICE[status]}" if status in ADVICE else said
    return (TakenError if status in (409, 412) else GrafanaRefusedError)(message, status=status)


def explain_failure(url: str, error: OSError) -> RetryLaterError | RefusedError:
    """The error for a request without an answer."""
    innermost: BaseException = error
    while innermost.__context__ is not None:  # the transport wraps what happened three times over
        innermost = innermost.__context__
    reason = str(innermost) or type(innermost).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason:
        return RefusedError(f"the certificate of {url} cannot be trusted: {reason}. If it is of an authority of your "
                            "own, name that authority's file in REQUESTS_CA_BUNDLE")  # fmt: skip
    return RetryLaterError(f"Grafana at {url} does not answer: {reason}")


def _words(text: str) -> str:
    """The message in an answer of Grafana, on one line."""
    try:
        raw = json.loads(text)
    except ValueError:
        raw = None
    said = raw.get("message") if isinstance(raw, dict) else None
    return tidy(said if isinstance(said, str) else text, MAX_ERROR_CHARS)


T = TypeVar("T")
Payload = Mapping[str, Any]

TIMEOUT_S = 15.0
"""Bound of connecting, of the wait for an answer, and of reading all of it: saving a dashboard took real servers some
seconds under load."""
MAX_ANSWER_BYTES = 16 << 20
"""Bound of an answer: the largest of ours, a dashboard, has 0.2 MB."""
READ_BYTES = 64 << 10
MAX_ANNOTATIONS = 100
"""Bound of one answer; one moment of one incident has a handful."""
KEPT = ("uid", "name", "type", "access", "basicAuth", "basicAuthUser", "withCredentials", "isDefault", "jsonData")
"""Fields that a data source keeps when its address changes; Grafana keeps secrets that it is not sent."""


class GrafanaClient:
    """An organisation of a Grafana. ``url`` may have a path (Grafana behind a sub-path).

    Raises ``ValueError`` for a URL that cannot be used; every request raises ``RetryLaterError``,
    ``GrafanaRefusedError``, and ``RefusedError`` for an answer that is not Grafana's.
    """

    def __init__(
        self, url: str, *, token: str, timeout_s: float = TIMEOUT_S, max_answer_bytes: int = MAX_ANSWER_BYTES
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{_without_user(url)!r} is not the address of a Grafana; it looks like "
                             "https://grafana.example")  # fmt: skip
        if parts.username is not None:
            raise ValueError("put no user and password into Grafana's address: it takes the token of a service account")
        path = parts.path.strip("/")
        self.url = f"{parts.scheme}://{parts.netloc}" + (f"/{path}" if path else "")
        """The address without a slash at the end."""
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes
        self._api = GrafanaAPI(
            token, parts.netloc, url_path_prefix=f"{path}/" if path else "", protocol=parts.scheme, timeout=timeout_s
        )
        # grafana_api's own reading of refusals stumbles over answers that are no JSON objects; ours comes first.
        self._api.s.hooks["response"].append(self._check)

    def close(self) -> None:
        self._api.s.close()

    def check(self) -> None:
        """Return if this is a Grafana that accepts the token. What the token may write shows when something is
        written."""
        self._ask("GET", "/annotations?limit=1", lambda raw: [_stored_annotation(one) for one in raw])

    def check_health(self) -> None:
        """Raises ``RefusedError`` if this is not a Grafana, and ``RetryLaterError`` while its database is down.

        Needs no token. ``version`` is absent where anonymous visitors shall not see it, ``database`` never.
        """
        self._ask("GET", "/health", lambda raw: raw["database"])

    def folder(self, uid: str) -> Folder | None:
        return self._find("GET", f"/folders/{_part(uid)}", lambda raw: Folder(uid=raw["uid"], title=raw["title"]))

    def create_folder(self, folder: Folder) -> None:
        self._do("POST", "/folders", {"uid": folder.uid, "title": folder.title})

    def data_source(self, uid: str) -> DataSource | None:
        return self._find("GET", f"/datasources/uid/{_part(uid)}", _data_source)

    def data_source_named(self, name: str) -> DataSource | None:
        return self._find("GET", f"/datasources/name/{_part(name)}", _data_source)

    def create_data_source(self, source: DataSource) -> None:
        # "proxy": Grafana's server asks Prometheus, not the browser. POST: long queries do not fit into an address.
        self._do("POST", "/datasources", {"uid": source.uid, "name": source.name, "type": source.type,
                                          "access": "proxy", "url": source.url,
                                          "jsonData": {"httpMethod": "POST"}})  # fmt: skip

    def move_data_source(self, uid: str, *, url: str) -> None:
        """Change the address of a data source and nothing else of it."""
        path = f"/datasources/uid/{_part(uid)}"
        kept = self._ask("GET", path, lambda raw: {key: raw[key] for key in KEPT if key in raw})
        self._do("PUT", path, {**kept, "url": url})

    def dashboard(self, uid: str) -> StoredDashboard | None:
        return self._find("GET", f"/dashboards/uid/{_part(uid)}", _stored_dashboard)

    def save_dashboard(self, model: DashboardModel, *, folder_uid: str, overwrite: bool, message: str) -> None:
        """``message`` is for the list of versions. Without ``overwrite`` an existing one raises ``TakenError``."""
        # Without a numeric id Grafana goes by the uid; ids differ from one Grafana to the next.
        dashboard = {key: value for key, value in model.items() if key not in ("id", "version")}
        self._do("POST", "/dashboards/db", {"dashboard": dashboard, "folderUid": folder_uid,
                                            "overwrite": overwrite, "message": message})  # fmt: skip

    def annotations(self, *, tags: Sequence[str], at_unix_ms: int) -> Sequence[StoredAnnotation]:
        """Annotations with all of these tags that cover that moment."""
        query = [("tags", tag) for tag in tags]
        query += [("from", str(at_unix_ms)), ("to", str(at_unix_ms)), ("type", "annotation")]
        path = f"/annotations?{urlencode([*query, ('limit', str(MAX_ANNOTATIONS))])}"
        return self._ask("GET", path, lambda raw: [_stored_annotation(one) for one in raw])

    def annotate(self, annotation: Annotation) -> int:
        """Make an annotation. Returns its id."""
        return self._ask("POST", "/annotations", lambda raw: int(raw["id"]), _payload(annotation))

    def change_annotation(self, annotation_id: int, annotation: Annotation) -> bool:
        """Replace an annotation by this one. False: it no longer exists."""
        path = f"/annotations/{annotation_id}"
        return self._find("PATCH", path, lambda _: True, _payload(annotation)) is not None

    def _find(self, method: str, path: str, read: Callable[[Any], T], payload: Payload | None = None) -> T | None:
        """The answer of ``_ask``; ``None`` for a thing that does not exist."""
        try:
            return self._ask(method, path, read, payload)
        except GrafanaRefusedError as error:
            if error.status == 404:
                return None
            raise

    def _do(self, method: str, path: str, payload: Payload) -> None:
        self._ask(method, path, lambda _: None, payload)

    def _ask(self, method: str, path: str, read: Callable[[Any], T], payload: Payload | None = None) -> T:
        try:
            return read(getattr(self._api, method)(path, json=payload))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(f"{self.url}/api{path.partition('?')[0]} does not answer as Grafana does: {error}. Is "
                               "this Grafana's address, with no login page in front of it?") from error  # fmt: skip
        except OSError as error:  # all of the transport's own errors are
            raise explain_failure(self.url, error) from error

    def _check(self, response: Any, **_: Any) -> None:
        """The session calls this for every answer before it reads it, which it would do without an end in size or time.
        Raises the error for a refusal."""
        try:
            response._content = self._read(response.raw)
        except BaseException:
            response.close()
            raise
        refusal = read_refusal(
            f"{response.request.method} {response.url.partition('?')[0]}",
            status=response.status_code,
            text=response.text if response.status_code >= 300 else "",
            headers=response.headers,
        )
        if refusal is not None:
            raise refusal

    def _read(self, raw: Any) -> bytes:
        until_s = time.monotonic() + self._timeout_s
        parts: list[bytes] = []
        read = getattr(raw, "read1", raw.read)  # urllib3 before 2.2 has read alone, which waits for all READ_BYTES
        while part := read(READ_BYTES, decode_content=True):
            parts.append(part)
            if sum(map(len, parts)) > self._max_answer_bytes:
                raise RefusedError(f"Grafana at {self.url} answers with more than {self._max_answer_bytes >> 20} MiB. "
                                   "Is this Grafana's address?")  # fmt: skip
            if time.monotonic() > until_s:
                raise RetryLaterError(f"Grafana at {self.url}: no whole answer within {self._timeout_s:g} s")
        return b"".join(parts)


def _payload(annotation: Annotation) -> dict[str, Any]:
    raw = {"time": annotation.at_unix_ms, "tags": list(annotation.tags), "text": annotation.text}
    # No null: Grafana's own description of its API does not allow one.
    return raw if annotation.end_unix_ms is None else {**raw, "timeEnd": annotation.end_unix_ms}


def _data_source(raw: Mapping[str, Any]) -> DataSource:
    return DataSource(raw["uid"], raw["name"], raw.get("url", ""), raw["type"], bool(raw.get("readOnly")))


def _stored_dashboard(raw: Mapping[str, Any]) -> StoredDashboard:
    about = raw.get("meta", {})
    return StoredDashboard(dict(raw["dashboard"]), about.get("folderUid", ""), bool(about.get("provisioned")))


def _stored_annotation(raw: Mapping[str, Any]) -> StoredAnnotation:
    return StoredAnnotation(raw["id"], raw["time"], frozenset(raw["tags"]))


def _part(text: str) -> str:
    """A uid or name as one part of a path, whatever characters it has."""
    return quote(text, safe="")


def _without_user(url: str) -> str:
    """The address without user and password, for messages."""
    scheme, separator, rest = url.rpartition("@")
    return rest if separator and scheme else url
