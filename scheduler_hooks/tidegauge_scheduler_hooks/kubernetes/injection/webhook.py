"""A small TLS server for the API server's questions: POST /mutate.

It faces the cluster's network, so whatever arrives is bounded (``tidegauge.web.server``). It has no other page. One
question a connection: an API server that finds a kept one closed at the moment when it asks gets no answer, and the pod
no probe.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidegauge.web.access import OpenDoor, Refusal
from tidegauge.web.connections import ServerLimits
from tidegauge.web.server import App, HttpRequest, HttpServer, Response, Routes, text_error

PATH = "/mutate"
MAX_BODY_BYTES = 3 << 20
"""The API server takes no larger request, so none of its questions is larger by much."""
MAX_CONNECTIONS = 64
LIMITS = ServerLimits(MAX_CONNECTIONS, ask_within_s=15.0, whole_s=15.0, patience_s=2.0, queues=True)
"""API servers wait for 5 s as the chart has it, 30 s at most. The patience is longer than a burst of pods keeps a slow
replica busy, and shorter than API servers wait."""


class ServerCertificate(Protocol):
    """Where the certificate comes from. Thread-safe, never blocks for long."""

    def current(self) -> ssl.SSLContext | None:
        """What connections are to be served with from now on; ``None`` while there is no certificate yet."""


class WebhookServer(HttpServer):
    """A certificate that was renewed counts from the next connection on."""

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
