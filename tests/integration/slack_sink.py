"""An HTTP server in Slack's place: keeps what is posted to an incoming webhook."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Posted = dict[str, Any]


class SlackSink:
    """What was posted, in order."""

    def __init__(self) -> None:
        self.url = ""
        """Where to post."""
        self._posts: list[Posted] = []
        self._changed = threading.Condition()

    def take(self, post: Posted) -> None:
        with self._changed:
            self._posts.append(post)
            self._changed.notify_all()

    def posts_about(self, text: str) -> list[Posted]:
        """Attachments whose title has this text."""
        with self._changed:
            return [post for post in self._posts if text in post["attachments"][0]["title"]]

    def wait_for(self, text: str, accept: Callable[[list[Posted]], bool] = bool, *, within_s: float = 120.0) -> Posted:
        """The latest post about ``text``, once ``accept`` likes all posts about it (by default: once there is one)."""
        deadline_s = time.monotonic() + within_s
        with self._changed:
            while True:
                found = [post for post in self._posts if text in post["attachments"][0]["title"]]
                if found and accept(found):
                    return found[-1]
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"after {within_s} s of waiting for {text!r}: {self._posts}"
                self._changed.wait(left_s)


@contextmanager
def slack_sink() -> Iterator[SlackSink]:
    """Listens on loopback until the block ends."""
    sink = SlackSink()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sink.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        sink.url = f"http://127.0.0.1:{server.server_address[1]}/services/T0/B0/X"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown()
            thread.join()
