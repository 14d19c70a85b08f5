"""The admission webhook: a small TLS server that answers AdmissionReviews (admission.k8s.io/v1) at POST /mutate.

It faces the cluster's network, so every request is bounded (``tidegauge.http.server``). One request per connection: an
API server that finds a kept connection closed gets no answer, and the pod no probe.
"""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidegauge.core.text import one_line
from tidegauge.http.access import OpenDoor, Refusal
from tidegauge.http.connections import ServerLimits
from tidegauge.http.server import App, HttpRequest, HttpServer, Response, Routes, text_error
from tidegauge.rate_limited_log import FewLines
from tidegauge_scheduler_hooks.kubernetes.injection.history import submitted_name
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import PodSettings, own_settings
from tidegauge_scheduler_hooks.kubernetes.injection.plan import (
    FOR_OWNERS,
    Injection,
    Skipped,
    asked_level,
    plan_injection,
)
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions

_logger = logging.getLogger(__name__)

API_VERSION = "admission.k8s.io/v1"
MAX_POD_BYTES = 1 << 20
"""A larger pod is left as it is: with the injection it might not fit into etcd (1.5 MiB) any more."""
MAX_WARNINGS, MAX_WARNING_CHARS = 8, 240
"""The API server cuts a warning at 256 characters, and drops all that come after 4096 together."""


class Injector:
    """Answers reviews. Thread-safe, never raises for a request of an API server."""

    def __init__(
        self,
        options: InjectionOptions,
        namespace_metadata: Callable[[str], Mapping[str, Any] | None],
        history: Callable[[str, str], str | None] = lambda *_: None,
        settings_of: Callable[[Mapping[str, Any], str], PodSettings] = own_settings,
        left_alone: Callable[[str, Mapping[str, Any], str], None] = lambda *_: None,
    ) -> None:
        """``namespace_metadata``: labels and annotations of a namespace by its name, ``None`` if it is not known (yet).
        ``history``: what earlier runs of the job with this namespace and name needed, ``None`` if it is not known.
        ``settings_of``: as in ``plan_injection``. ``left_alone``: told the namespace, the metadata and the reason of a
        pod that only its owner can say more about. None of them may block for longer than API servers wait."""
        self._options = options
        self._namespace_metadata = namespace_metadata
        self._history = history
        self._settings_of = settings_of
        self._left_alone = left_alone
        self._lines = FewLines(_logger)
        """Of defects: whoever reaches the port can ask about pods that no API server would take."""
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter({("injected", ""): 0, ("failed", ""): 0})

    def answer(self, body: bytes) -> Mapping[str, Any]:
        """The AdmissionReview to send back. Raises ``ValueError`` for a request that is no AdmissionReview: without its
        uid there is no answer to it."""
        request = self._request(body)
        try:
            outcome, sentence = self._outcome(request, len(body)), self._sentence(request)
        except Exception as error:  # a defect here is no reason to keep a pod from being created
            self._lines.say(
                logging.ERROR, "pod %s is created without the probe", _whose(request), now_s=time.monotonic(),
                exc_info=error,
            )  # fmt: skip
            self._count("failed")
            return _review(request, {})
        self._count("injected" if isinstance(outcome, Injection) else "skipped", outcome.reason)
        for warning in outcome.warnings:
            _logger.info("pod %s: %s", _whose(request), warning)
        return _review(request, _changes(outcome, sentence))

    def counts(self) -> Mapping[tuple[str, ...], int]:
        """Reviews since the start of the process, by outcome and reason.

        ``injected``, with the reason ``owner_unread`` where without the settings of the pod's workload; ``skipped`` for
        a reason; ``failed``: the pod was created without the probe, by an internal error or because the request was no
        review."""
        with self._lock:
            return dict(self._counts)

    def _request(self, body: bytes) -> Mapping[str, Any]:
        try:
            review = json.loads(body)
            request = review["request"]
            if review["apiVersion"] != API_VERSION or not isinstance(request["uid"], str):
                raise ValueError(f"not a review of {API_VERSION}")
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            self._count("failed")
            raise ValueError(f"not an AdmissionReview: {type(error).__name__}") from error
        found: Mapping[str, Any] = request
        return found

    def _outcome(self, request: Mapping[str, Any], size_bytes: int) -> Injection | Skipped:
        if (request.get("resource") or {}).get("resource") != "pods" or request.get("operation") != "CREATE":
            return Skipped("no_new_pod")
        if size_bytes > MAX_POD_BYTES:
            labels = (request["object"].get("metadata") or {}).get("labels") or {}
            asks = asked_level(labels, {})[0] not in (None, "off")
            return Skipped(
                "too_large", ("the pod is not watched: its description is larger than 1 MiB",) if asks else ()
            )
        namespace = request["namespace"]
        outcome = plan_injection(
            request["object"],
            namespace=namespace,
            namespace_metadata=self._namespace_metadata(namespace) or {},
            options=self._options,
            settings_of=self._settings_of,
        )
        if isinstance(outcome, Skipped) and outcome.reason in FOR_OWNERS and not request.get("dryRun"):
            self._left_alone(namespace, request["object"]["metadata"], outcome.warnings[0])
        return outcome

    def _sentence(self, request: Mapping[str, Any]) -> str | None:
        name = submitted_name(request)
        return None if name is None else self._history(request["namespace"], name)

    def _count(self, what: str, reason: str = "") -> None:
        with self._lock:
            self._counts[what, reason] += 1


def _changes(outcome: Injection | Skipped, sentence: str | None) -> Mapping[str, Any]:
    changes: dict[str, Any] = {}
    told = [*outcome.warnings, *([] if sentence is None else [sentence])][:MAX_WARNINGS]
    if told:
        changes["warnings"] = [one_line(f"tidegauge: {text}", MAX_WARNING_CHARS) for text in told]
    if isinstance(outcome, Injection):
        patch = json.dumps(outcome.operations).encode()
        changes.update(patchType="JSONPatch", patch=base64.b64encode(patch).decode())
    return changes


def _review(request: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    response = {"uid": request["uid"], "allowed": True, **changes}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _whose(request: Mapping[str, Any]) -> str:
    pod = request.get("object")
    metadata = pod.get("metadata") if isinstance(pod, Mapping) else None
    name = (metadata.get("name") or metadata.get("generateName")) if isinstance(metadata, Mapping) else "?"
    return one_line(f"{request.get('namespace')}/{name}", 200)


PATH = "/mutate"
MAX_BODY_BYTES = 3 << 20
"""The API server takes no larger request, so none of its reviews is larger by much."""
MAX_CONNECTIONS = 64
LIMITS = ServerLimits(MAX_CONNECTIONS, ask_within_s=15.0, whole_s=15.0, patience_s=2.0, queues=True)
"""API servers wait for 5 s by the chart, 30 s at most. The patience is longer than a burst of pods keeps a slow replica
busy, and shorter than API servers wait."""


class ServerCertificate(Protocol):
    """A source of the certificate. Thread-safe, never blocks for long."""

    def current(self) -> ssl.SSLContext | None:
        """The context for new connections; ``None`` while there is no certificate yet."""


class WebhookServer(HttpServer):
    """The server. A renewed certificate is used from the next connection on."""

    def __init__(
        self, host: str, port: int, certificate: ServerCertificate, answer: Callable[[bytes], Mapping[str, Any]]
    ) -> None:
        """``port`` 0: any free one. ``answer`` is ``Injector.answer``. Raises ``OSError`` if it cannot listen."""

        def mutate(request: HttpRequest) -> Response | Refusal:
            body = request.body(MAX_BODY_BYTES, "no question of an API server is longer")
            if isinstance(body, Refusal):
                return body
            if request.path != PATH:  # after its body: unread, it would reset the connection
                return Refusal(404, f"not found: only {PATH}")
            try:
                return Response(json.dumps(answer(body)).encode())
            except ValueError as error:
                return Refusal(400, str(error))

        routes: Routes = {("POST", None): mutate, ("GET", None): lambda _: Refusal(405, f"use POST to {PATH}")}
        app = App(routes, LIMITS, "controller", text_error, protocol="HTTP/1.1")
        super().__init__(app, host=host, port=port, door=_CertificateDoor(certificate))
        self.bind()


class _CertificateDoor(OpenDoor):
    scheme = "https"

    def __init__(self, certificate: ServerCertificate) -> None:
        self._certificate = certificate

    def tls(self) -> ssl.SSLContext:
        context = self._certificate.current()
        if context is None:
            raise ConnectionRefusedError("there is no certificate yet")
        return context
