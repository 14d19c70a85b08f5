"""``KubeApi`` on the official client: paths, pages, retries. Objects pass through as raw JSON."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError

from tidegauge_scheduler_hooks.kubernetes.client.connection import Connection
from tidegauge_scheduler_hooks.kubernetes.client.errors import ApiCall, ExpiredError, lost, not_connected, refusal
from tidegauge_scheduler_hooks.kubernetes.ports import FIELD_MANAGER, InvalidError, Object, Patch, Resource
from tidegauge_scheduler_hooks.ports import TemporaryError


class TokenBucket:
    """Limits requests to ``per_s`` a second on average and ``burst`` at once, as client-go's ``QPS`` and ``Burst``.
    Thread-safe: callers queue in order."""

    def __init__(self, *, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = burst
        self._free = float(burst)
        """Below zero: requests that are promised ahead of time."""
        self._at_s: float | None = None
        self._lock = threading.Lock()

    def take(self, now_s: float, *, at_most_s: float) -> float | None:
        """Seconds to wait before the request may go out; ``None``, without a place in the queue, if that is over
        ``at_most_s``."""
        with self._lock:
            if self._at_s is not None:
                self._free = min(self._burst, self._free + max(0.0, now_s - self._at_s) * self._per_s)
            self._at_s = now_s
            wait_s = max(0.0, (1 - self._free) / self._per_s)
            if wait_s > at_most_s:
                return None
            self._free -= 1
            return wait_s


_CHANCE = random.Random()  # an own one: threads must not disturb what others drew by a seed
USER_AGENT = f"{FIELD_MANAGER}/{version('tidegauge')}"
PAGE_SIZE = 500
"""Objects per page of a ``list``, as with ``kubectl``: 500 pods are about 5 MB."""
CONNECT_S = 5.0
CHUNK_BYTES = 1 << 16
FIRST_PAUSE_S = 0.1
"""Before the second try to connect; doubled before each further one."""


class Version(NamedTuple):
    """The ``metadata`` of a list."""

    resource_version: str


class Listing(NamedTuple):
    """All objects of a kind at one version; ``SharedInformer`` needs these names."""

    items: list[dict[str, Any]]
    metadata: Version


class _LateError(HTTPError):
    """The answer has begun, but does not end in time."""


def open_api(
    kubeconfig: Path | None,
    *,
    user_agent: str = USER_AGENT,
    qps: float = 20.0,
    burst: int = 40,
    timeout_s: float = 10.0,
) -> ClientApi:
    """The API server of ``kubeconfig``'s current context, or of the cluster whose pod this runs in (``None``).

    ``user_agent`` up to the slash is the name in ``managedFields``. ``qps`` and ``burst`` limit all threads together;
    every call ends within ``timeout_s`` (a ``list``: each of its pages). Raises ``PermanentError`` if there are no
    credentials; connects to nothing yet."""
    return ClientApi(
        Connection(kubeconfig, user_agent=user_agent), TokenBucket(per_s=qps, burst=burst), timeout_s=timeout_s
    )


class ClientApi:
    """``KubeApi``. Thread-safe.

    A request is repeated while there is time if it cannot have had an effect (no connection, 429), or if it only reads.
    Raises ``InvalidError`` for names that cannot be in a path."""

    def __init__(self, connection: Connection, bucket: TokenBucket, *, timeout_s: float) -> None:
        self._connection = connection
        self._bucket = bucket
        self._timeout_s = timeout_s

    def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return self._object(ApiCall("get", resource, namespace, name), "GET")

    def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Sequence[Object]:
        found = self._listing(resource, namespace, label_selector=label_selector, field_selector=field_selector)
        return found.items

    def create(self, resource: Resource, namespace: str | None, body: Object) -> Object:
        name = str((body.get("metadata") or {}).get("name") or "")
        return self._object(ApiCall("create", resource, namespace, name), "POST", dict(body))

    def review(self, resource: Resource, body: Object) -> Object:
        """The answer to a question, such as a TokenReview, which the server does not keep and which has no name."""
        return self._ask(ApiCall("create", resource, None), "POST", {}, dict(body))

    def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        how: Patch = Patch.MERGE,
        subresource: str | None = None,
    ) -> Object:
        # The client takes anything but a list under JSON's content type for a strategic merge.
        body = dict(patch) if isinstance(patch, Mapping) else [dict(operation) for operation in patch]
        if isinstance(body, dict) == (how is Patch.JSON):
            raise InvalidError(f"a patch of {resource.kind} {name} is not {how.value}")
        # Nobody else has a say in fields that we apply: they are forced.
        query = {"fieldManager": FIELD_MANAGER, "force": "true"} if how is Patch.APPLY else {}
        return self._object(ApiCall("patch", resource, namespace, name, subresource), "PATCH", body, how.value, query)

    def replace(self, resource: Resource, namespace: str | None, name: str, body: Object) -> Object:
        return self._object(ApiCall("update", resource, namespace, name), "PUT", dict(body))

    def listing(
        self,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
    ) -> Listing:
        """All pages of a list, without ``managedFields``, and the version to watch from."""
        found = self._listing(resource, namespace, label_selector=label_selector, field_selector=field_selector)
        for item in found.items:
            drop_managed_fields(item)
        return found

    def _listing(
        self, resource: Resource, namespace: str | None, *, label_selector: str | None, field_selector: str | None
    ) -> Listing:
        ask = ApiCall("list", resource, namespace)
        query = _given(labelSelector=label_selector, fieldSelector=field_selector, limit=str(PAGE_SIZE))
        try:
            return self._pages(ask, query)
        except ExpiredError:  # the server forgot the version of the first page: all in one answer, as client-go does
            del query["limit"]
            return self._pages(ask, query)

    def open_watch(
        self, resource: Resource, namespace: str | None, since: str, *, label_selector: str | None, for_s: float
    ) -> BaseHTTPResponse:
        """Events since version ``since``, a JSON line each, until the server ends them after ``for_s`` seconds; a
        silence of 15 s more than that raises ``ReadTimeoutError``. Raises ``ExpiredError``."""
        ask = ApiCall("watch", resource, namespace)
        query = _given(
            labelSelector=label_selector,
            resourceVersion=since,
            timeoutSeconds=str(round(for_s)),
            allowWatchBookmarks="true",
            watch="true",
        )
        self._wait_for_turn(ask, self._timeout_s)
        try:
            response = self._connection.send("GET", _path(ask), query, connect_s=CONNECT_S, read_s=for_s + 15.0)
            if response.status == 200:
                return response
            body = _whole(response, time.monotonic() + self._timeout_s)
        except HTTPError as error:
            raise lost(ask, self._connection.address, error) from error
        raise refusal(ask, response.status, body, retry_after_s=_retry_after_s(response))

    def _pages(self, ask: ApiCall, query: Mapping[str, str]) -> Listing:
        items: list[dict[str, Any]] = []
        go_on: dict[str, str] = {}
        while True:
            page = self._ask(ask, "GET", {**query, **go_on})
            # A list of a built-in kind does not repeat these in every object; a watch and a get do.
            kind = {"apiVersion": ask.resource.api_version, "kind": ask.resource.kind}
            metadata, found = page.get("metadata"), page.get("items") or []
            if not (isinstance(metadata, dict) and isinstance(found, list) and all(map(_is_object, found))):
                raise lost(ask, self._connection.address, "JSON that is not a list of objects")
            items += ({**kind, **item} for item in found)
            if not metadata.get("continue"):
                return Listing(items, Version(str(metadata.get("resourceVersion") or "0")))
            go_on = {"continue": metadata["continue"]}

    def _object(
        self,
        ask: ApiCall,
        method: str,
        body: Any = None,
        content_type: str = "application/json",
        query: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        said = self._ask(ask, method, query, body, content_type)
        if not _is_object(said):
            raise lost(ask, self._connection.address, "JSON that is not a Kubernetes object")
        return said

    def _ask(
        self,
        ask: ApiCall,
        method: str,
        query: Mapping[str, str],
        body: Any = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        """The answer to a request, repeated while that is safe and there is time."""
        path = _path(ask)
        deadline_s = time.monotonic() + self._timeout_s
        pause_s = FIRST_PAUSE_S
        while True:
            # A pause that lasted too long (a machine that stood still) is no limit of ours: what was wrong stays said.
            self._wait_for_turn(ask, max(0.0, deadline_s - time.monotonic()))
            left_s = max(0.1, deadline_s - time.monotonic())
            again_s: float | None = pause_s * _CHANCE.uniform(0.5, 1.0)
            error: Exception
            try:
                response = self._connection.send(
                    method, path, query, body=body, content_type=content_type,
                    connect_s=min(left_s, CONNECT_S), read_s=left_s,
                )  # fmt: skip
                answer = _whole(response, deadline_s)
                if 200 <= response.status < 300:
                    return self._json(ask, answer)
                retry_after_s = _retry_after_s(response)
                error = refusal(ask, response.status, answer, retry_after_s=retry_after_s)
                again_s = (retry_after_s if retry_after_s is not None else 1.0) if response.status == 429 else None
            except (NewConnectionError, ConnectTimeoutError) as cause:
                error = not_connected(ask, self._connection.address, cause)
            except SSLError as cause:  # nothing but the connection has been tried, or it would say so differently
                error = not_connected(ask, self._connection.address, cause)
                again_s = None
            except HTTPError as cause:
                late = isinstance(cause, (_LateError, ReadTimeoutError))
                error = lost(ask, self._connection.address, f"nothing within {self._timeout_s:g} s" if late else cause)
                again_s = again_s if ask.reads else None
            if again_s is None or time.monotonic() + again_s >= deadline_s:
                raise error
            time.sleep(again_s)
            pause_s *= 2

    def _wait_for_turn(self, ask: ApiCall, at_most_s: float) -> None:
        wait_s = self._bucket.take(time.monotonic(), at_most_s=at_most_s)
        if wait_s is None:
            raise TemporaryError(
                f"{ask}: not sent: too many requests are already waiting for Tidegauge's own rate limit"
            )
        time.sleep(wait_s)

    def _json(self, ask: ApiCall, answer: bytes) -> dict[str, Any]:
        try:
            said = json.loads(answer)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):  # a proxy's page of greeting
            raise lost(ask, self._connection.address, f"{len(answer)} bytes that are not a JSON object")
        return said


def _is_object(said: Any) -> bool:
    """Whether it is an API server's answer, and not that of a proxy that accepts everything."""
    metadata = said.get("metadata") if isinstance(said, dict) else None
    return isinstance(metadata, dict) and isinstance(metadata.get("name"), str)


def drop_managed_fields(item: dict[str, Any]) -> None:
    """Drop the record of who set which field: a third of a pod's bytes, and of no use in a cache."""
    item["metadata"].pop("managedFields", None)


def _path(ask: ApiCall) -> str:
    assert ask.verb in ("list", "watch") or (ask.namespace is not None) == ask.resource.namespaced, str(ask)
    root = f"/apis/{ask.resource.group}" if ask.resource.group else "/api"
    parts = [root, ask.resource.version]
    if ask.namespace is not None:
        parts += ["namespaces", _segment(ask, ask.namespace)]
    parts.append(ask.resource.plural)
    if ask.verb not in ("list", "watch", "create"):
        parts.append(_segment(ask, ask.name))
    if ask.subresource:
        parts.append(ask.subresource)
    return "/".join(parts)


def _segment(ask: ApiCall, name: str) -> str:
    # urllib3 resolves dots: a "name" of ".." would be another request. Slashes the API server finds, quoted or not; no
    # object's name has one (k8s.io/apimachinery, IsValidPathSegmentName).
    if name in ("", ".", "..") or "/" in name or "%" in name:
        raise InvalidError(f"{ask}: {name!r} is not a name")
    return quote(name, safe="")


def _given(**query: str | None) -> dict[str, str]:
    return {key: value for key, value in query.items() if value is not None}


def _whole(response: BaseHTTPResponse, deadline_s: float) -> bytes:
    """The body; returns the connection to the pool. Raises ``HTTPError``, also where it drips past the deadline."""
    chunks = []
    try:
        while chunk := response.read1(CHUNK_BYTES):
            chunks.append(chunk)
            if time.monotonic() > deadline_s:
                raise _LateError("not in time")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return b"".join(chunks)


def _retry_after_s(response: BaseHTTPResponse) -> float | None:
    """API servers write whole seconds; a date, as HTTP also has it, is left alone."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None
