"""``/healthz``, ``/readyz`` and ``/metrics`` for the kubelet and Prometheus: plain HTTP, nothing secret, read only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidegauge.web.access import Refusal
from tidegauge.web.connections import ServerLimits
from tidegauge.web.server import TEXT_TYPE, App, Handler, HttpServer, Response, Routes, text_error

CONNECTIONS_AT_ONCE = 16
LIMITS = ServerLimits(CONNECTIONS_AT_ONCE, ask_within_s=5.0, whole_s=30.0, patience_s=0.05, queues=True)
"""A kubelet's probe says at once which page it wants, and gives up after 1 s by default."""


class HealthPage(NamedTuple):
    """What is answered; ``good`` is what a probe looks at."""

    text: str
    good: bool = True
    content_type: str = TEXT_TYPE


class HealthServer(HttpServer):
    """``pages`` by path; each is made anew for every request, in the server's threads, so it must not block."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], HealthPage]]) -> None:
        """Binds the port. Raises ``OSError`` if it is taken or the host is not ours."""
        routes: Routes = {
            **{("GET", path): _page(make) for path, make in pages.items()},
            ("GET", None): lambda _: Refusal(404, f"not found: try {', '.join(pages)}"),
        }
        super().__init__(App(routes, LIMITS, "controller", text_error), host=host, port=port)
        self.bind()


def _page(make: Callable[[], HealthPage]) -> Handler:
    def page(_: object) -> Response:
        text, good, content_type = make()
        return Response(text.encode(errors="replace"), content_type, status=200 if good else 503)

    return page
