"""The API server as the stand-ins speak to it: raw JSON over HTTPS, and watches that begin again by themselves."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.kube_config import load_kube_config

Object = Mapping[str, Any]

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

TIMEOUT_S = 30.0
"""Longer than a machine may stand still."""
AGAIN_AFTER_S = 0.2
WATCH_S = 120


class ApiError(RuntimeError):
    """The API server did not do it. ``status`` is that of HTTP, 0 where there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """The same call may succeed later."""
        return self.status in (0, 429) or self.status >= 500


class Change(NamedTuple):
    """An object that is there or was changed, or (``gone``) is there no longer."""

    object: Object
    gone: bool


class Api:
    """One API server. Threads may share it."""

    def __init__(self, kubeconfig: Path) -> None:
        self._configuration = Configuration()
        load: Callable[..., None] = load_kube_config  # untyped
        load(str(kubeconfig), client_configuration=self._configuration, persist_config=False)
        self._pool: urllib3.PoolManager = RESTClientObject(self._configuration).pool_manager

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as the kubeconfig has them."""
        url = urlsplit(self._configuration.host)
        return url.hostname or "", url.port or 443

    @property
    def certificate_authority(self) -> str:
        """The PEM text that the kubeconfig trusts; empty where it names none."""
        path = self._configuration.ssl_ca_cert
        return Path(path).read_text() if path else ""

    def call(
        self, method: str, path: str, body: object = None, *, how: str = JSON, query: Mapping[str, Any] | None = None
    ) -> Any:
        """The answer as JSON. Raises ``ApiError``."""
        content = None if body is None else json.dumps(body)
        response = self._request(method, path, query or {}, content, how, TIMEOUT_S, stream=False)
        return json.loads(response.data) if response.data else {}

    def insist(self, stop: threading.Event, method: str, path: str, body: object = None, *, how: str = JSON) -> Any:
        """As ``call``, again and again while the server is away or busy. Raises the other errors, and all of them once
        ``stop`` is set."""
        failed: ApiError | None = None
        while failed is None or not stop.wait(AGAIN_AFTER_S):
            try:
                return self.call(method, path, body, how=how)
            except ApiError as error:  # noqa: PERF203 - it is waited for
                if not error.may_pass:
                    raise
                failed = error
        raise failed

    def changes(self, path: str, query: Mapping[str, Any], stop: threading.Event) -> Iterator[Change]:
        """Everything below ``path``, and then what becomes of it. Nothing is missed when the server is away, cuts the
        watch or has forgotten the version: all is listed again."""
        known: dict[str, Object] = {}
        while not stop.is_set():
            try:
                listed = self.call("GET", path, query=query)
                there = {item["metadata"]["uid"]: item for item in listed.get("items") or ()}
                vanished = [known[uid] for uid in known.keys() - there.keys()]
                known = there
                yield from (Change(item, gone=True) for item in vanished)
                yield from (Change(item, gone=False) for item in list(there.values()))
                version = listed["metadata"]["resourceVersion"]
                while not stop.is_set():
                    for kind, item in self._watch(path, {**query, "resourceVersion": version}):
                        version = item["metadata"]["resourceVersion"]
                        if kind == "BOOKMARK":
                            continue
                        if kind == "DELETED":
                            known.pop(item["metadata"]["uid"], None)
                        else:
                            known[item["metadata"]["uid"]] = item
                        yield Change(item, gone=kind == "DELETED")
            except ApiError:
                stop.wait(AGAIN_AFTER_S)

    def _watch(self, path: str, query: Mapping[str, Any]) -> Iterator[tuple[str, Object]]:
        """Until the server ends it. Raises ``ApiError`` if that was not as agreed, 410 Gone included."""
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_S}
        response = self._request("GET", path, asked, None, JSON, WATCH_S + TIMEOUT_S, stream=True)
        rest = b""
        try:
            for piece in response.stream(1 << 16, decode_content=True):
                *lines, rest = (rest + piece).split(b"\n")
                for event in map(json.loads, filter(None, lines)):
                    if event["type"] == "ERROR":
                        raise ApiError(event["object"].get("code", 0), event["object"].get("message", ""))
                    yield event["type"], event["object"]
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"the watch of {path} broke: {error}") from error
        finally:
            response.close()

    def _request(
        self, method: str, path: str, query: Mapping[str, Any], body: str | None, how: str, timeout_s: float,
        *, stream: bool,
    ) -> urllib3.BaseHTTPResponse:  # fmt: skip
        token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        headers = {"Accept": JSON, "Content-Type": how, **({"Authorization": token} if token else {})}
        try:
            response = self._pool.request(
                method, f"{self._configuration.host}{path}?{urlencode(query)}", body=body, headers=headers,
                timeout=urllib3.Timeout(connect=TIMEOUT_S, read=timeout_s), retries=False, preload_content=not stream,
            )  # fmt: skip
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, f"{method} {path}: {error}") from error
        if response.status >= 400:
            said = response.data.decode(errors="replace")[:2000]
            raise ApiError(response.status, f"{method} {path}: HTTP {response.status}: {said}")
        return response
