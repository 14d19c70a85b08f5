"""The HTTP server of a node: ``/metrics``, ``/healthz`` and a page that links to them."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from urllib.parse import parse_qs

from prometheus_client.exposition import choose_encoder, gzip_accepted

from tidegauge.core.views import NodeView
from tidegauge.http.access import OPEN_DOOR, Door, Refusal
from tidegauge.http.connections import ServerLimits
from tidegauge.http.server import (
    HTML_TYPE,
    TEXT_TYPE,
    App,
    Handler,
    HttpRequest,
    HttpServer,
    Response,
    Routes,
    text_error,
)
from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.families import ServiceRegistry

CONNECTIONS_AT_ONCE = 16
"""A node is scraped by one or two Prometheus servers."""
LIMITS = ServerLimits(CONNECTIONS_AT_ONCE, ask_within_s=10.0, whole_s=30.0)
"""Prometheus' own scrape timeout is 10 s by default."""

_INDEX = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tidegauge node agent</title>
<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:3rem}</style>
<h1>Tidegauge node agent</h1>
<ul><li><a href="metrics">metrics</a> for Prometheus</li><li><a href="healthz">healthz</a></li></ul>
</html>
"""


class MetricsServer(HttpServer):
    """Serves one node's metrics. ``view`` returns the node's present state; the server's threads call it once a scrape,
    perhaps twice at once, so it computes nothing.

    The text is OpenMetrics or Prometheus' own format, compressed or not, as the scraper asks; if the query has
    ``name[]``, only these metrics.
    """

    def __init__(
        self, view: Callable[[], NodeView], *, host: str = "127.0.0.1", port: int = 0, door: Door = OPEN_DOOR
    ) -> None:
        registry = ServiceRegistry()
        registry.register(NodeCollector(view))
        routes: Routes = {
            ("GET", "/metrics"): for_readers(metrics_handler(registry)),
            (None, "/metrics"): for_readers(lambda _: Refusal(405, "use GET here", (("Allow", "GET"),))),
            (None, "/"): for_readers(lambda _: Response(_INDEX, HTML_TYPE)),
            (None, "/healthz"): lambda _: Response(b"ok\n", TEXT_TYPE),
            (None, None): for_readers(lambda _: Refusal(404, "not found: try /metrics or /healthz")),
        }
        super().__init__(App(routes, LIMITS, "agent", text_error), host=host, port=port, door=door)

    @property
    def address(self) -> str:
        """The bound ``host:port``, with TLS ``https://host:port``; see ``service_discovery.advertised_address``."""
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return address if self.door.scheme == "http" else f"{self.door.scheme}://{address}"


def for_readers(handler: Handler) -> Handler:
    """The handler, for viewers who may read metrics."""

    def guarded(request: HttpRequest) -> Response | Refusal:
        viewer = request.admit()
        if isinstance(viewer, Refusal):
            return viewer
        if not viewer.reads_metrics:
            return Refusal(
                403, f"{viewer.name} may not read this: an admin of this service can add them to metrics_readers"
            )
        return handler(request)

    return guarded


def metrics_handler(registry: ServiceRegistry) -> Handler:
    """The handler of ``/metrics``: the registry's families, compressed and cut down to ``name[]`` as asked."""

    def metrics(request: HttpRequest) -> Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        names = parse_qs(request.query).get("name[]")
        text = encode(registry if names is None else registry.restricted_registry(names))
        if gzip_accepted(request.headers.get("Accept-Encoding", "")):
            return Response(gzip.compress(text), content_type, (("Content-Encoding", "gzip"),))
        return Response(text, content_type)

    return metrics
