"""An HTTP server that Alertmanager's webhooks post to, in the place of whoever is on call at a site."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from serving import Serving


class Notified(NamedTuple):
    """One alert of one post."""

    at_s: float
    """Of the monotonic clock."""
    status: str
    """``firing`` or ``resolved``."""
    name: str
    labels: dict[str, str]
    annotations: dict[str, str]


class AlertReceiver:
    """What was posted, in order."""

    def __init__(self) -> None:
        self.url = ""
        self._notified: list[Notified] = []
        self._changed = threading.Condition()

    @property
    def notified(self) -> list[Notified]:
        with self._changed:
            return list(self._notified)

    def take(self, post: dict[str, Any]) -> None:
        now_s = time.monotonic()
        with self._changed:
            for alert in post["alerts"]:
                labels = alert["labels"]
                self._notified.append(
                    Notified(now_s, alert["status"], labels["alertname"], labels, alert["annotations"])
                )
            self._changed.notify_all()

    def wait_for(self, accept: Callable[[Notified], bool], *, within_s: float) -> Notified:
        """The first alert that ``accept`` likes; ``AssertionError`` with all others after ``within_s``."""
        deadline_s = time.monotonic() + within_s
        with self._changed:
            while True:
                found = [one for one in self._notified if accept(one)]
                if found:
                    return found[0]
                left_s = deadline_s - time.monotonic()
                told = [(one.name, one.status) for one in self._notified]
                assert left_s > 0, f"after {within_s} s: {told}"
                self._changed.wait(left_s)

    def receiver_file(self, path: Path, *, send_resolved: bool = True) -> Path:
        """A file for ``alertmanager.sh --service-receiver``."""
        lines = ["webhook_configs:", f"  - url: {self.url}", f"    send_resolved: {str(send_resolved).lower()}", ""]
        path.write_text("\n".join(lines), encoding="utf-8")
        return path


@contextmanager
def alert_receiver() -> Iterator[AlertReceiver]:
    """Listens on loopback until the block ends."""
    receiver = AlertReceiver()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}/"
    with Serving(server):
        yield receiver
