"""A headless Chromium that tests drive by its devtools protocol, over two pipes: no port, no package.

https://chromedevtools.github.io/devtools-protocol: messages are JSON objects that end with a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
"""For one answer: a page of 100,000 events on a busy machine with two cores."""
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--remote-debugging-pipe",
)  # fmt: skip

Json = Any


def chromium() -> str | None:
    """The browser's program, if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One page. What it logs, throws and fetches is kept."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._received = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Json]] = []

    def attach(self) -> None:
        """To a new tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method: str, **params: Json) -> dict[str, Json]:
        """The command's result. Raises ``AssertionError`` where the browser refuses it."""
        self._last_id += 1
        message: dict[str, Json] = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Json] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str) -> None:
        """Go there, and wait until it is loaded."""
        self.events.clear()
        loader = self.call("Page.navigate", url=url)["loaderId"]
        # By its own number: the page of before may be told to be loaded only now.
        while not any(_is_loaded(event, loader) for event in self.events):
            self.events.append(self._next())

    def follow(self, expression: str) -> None:
        """Have a JavaScript expression lead to another page, as a click does, and wait until that is loaded."""
        self.events.clear()
        self.ask(expression)
        while not any(_is_loaded(event) for event in self.events):
            self.events.append(self._next())

    def ask(self, expression: str) -> Json:
        """What a JavaScript expression is, as JSON; of a promise, what comes of it. Raises ``AssertionError``."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Until a JavaScript expression holds; looked at before each picture that the browser paints."""
        look = f"const look = () => ({condition}) ? done(true) : requestAnimationFrame(look); look();"
        self.ask(f"new Promise((done) => {{ {look} }})")

    def key(self, name: str, text: str = "") -> None:
        """Press and let go."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)

    def mouse(self, kind: str, x: float, y: float) -> None:
        """``mouseMoved``, ``mousePressed`` or ``mouseReleased``."""
        button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def screen(self, *, width: int, height: int, dark: bool = False, media: str = "") -> None:
        """Size and colours from now on; ``media="print"``: as on paper."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def picture(self, path: Path) -> None:
        """The whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Errors on the console, exceptions, and what the policy of the page refused."""
        self.ask("0")  # what was said before this answer has arrived
        return [json.dumps(event) for event in self.events if _is_complaint(event)]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        self.ask("0")
        sent = (event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [params["request"]["url"] for params in sent]

    def _next(self) -> dict[str, Json]:
        ends_s = time.monotonic() + TIMEOUT_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._from], [], [], max(ends_s - time.monotonic(), 0.0))
            assert ready, f"the browser has not answered for {TIMEOUT_S:.0f} s"
            part = os.read(self._from, 1 << 16)
            assert part, "the browser has ended"
            self._received += part
        line, _, self._received = self._received.partition(b"\0")
        message: dict[str, Json] = json.loads(line)
        return message


def _is_loaded(event: Mapping[str, Json], loader: str | None = None) -> bool:
    """``loader``: this page, else any."""
    if event.get("method") != "Page.lifecycleEvent":
        return False
    return event["params"]["name"] == "load" and loader in (None, event["params"]["loaderId"])


def _is_complaint(event: Mapping[str, Json]) -> bool:
    if event.get("method") == "Runtime.exceptionThrown":
        return True
    if event.get("method") == "Log.entryAdded":
        return bool(event["params"]["entry"]["level"] == "error")
    return event.get("method") == "Runtime.consoleAPICalled" and event["params"]["type"] in ("error", "assert")


@contextmanager
def open_tab(program: str, *flags: str) -> Iterator[Tab]:
    """A browser of its own, which ends with the block. ``flags``: beside those that every test's has."""
    from_us, to_browser = os.pipe()
    from_browser, from_it = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The browser reads from its descriptor 3 and writes to 4, whatever ours are called.
        script = f'exec "$@" 3<&{from_us} 4>&{from_it}'
        browser = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *_FLAGS, *flags, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(from_us, from_it),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us)
        os.close(from_it)
        try:
            tab = Tab(to_browser, from_browser)
            tab.attach()
            yield tab
        finally:
            os.close(to_browser)  # it ends when nobody speaks to it any more
            try:
                browser.wait(TIMEOUT_S / 2)
            except subprocess.TimeoutExpired:
                browser.kill()
                browser.wait()
            os.close(from_browser)
