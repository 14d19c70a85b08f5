"""``tidegauge top`` in a real pseudo-terminal of 80 x 24 characters, before a real coordinator's API and database."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from still_service import AwayEngine
from tidegauge.cluster.incident_loops.action_loop import ActionLoop, open_actions
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.cluster.service_record import StateFiles
from tidegauge.settings import Settings
from top_world import World

COLUMNS, LINES = 80, 24
PATIENCE_S = 60.0
_ESCAPE = (
    r"\x1b(?:\[(?P<numbers>[0-9;?<>=]*)[ -/]*(?P<command>[@-~])"
    r"|[PX^_\]](?s:.*?)(?:\x07|\x1b\\)"  # titles, and questions to the terminal
    r"|[ -/]*[0-OQ-WYZ`-~])"
)
_PIECES = re.compile(rf"{_ESCAPE}|(?P<text>[^\x00-\x1f]+)|(?P<control>[\x00-\x1a\x1c-\x1f])")
_WHOLE = re.compile(_ESCAPE)


class Screen:
    """The few things of a terminal that textual uses: moving the cursor and writing."""

    def __init__(self) -> None:
        self.cells = [[" "] * COLUMNS for _ in range(LINES)]
        self.modes: set[str] = set()
        self._row = self._column = 0
        self._rest = ""

    def feed(self, text: str) -> None:
        text = self._rest + text
        last = text.rfind("\x1b")
        torn = last if last >= 0 and not _WHOLE.match(text, last) else len(text)
        text, self._rest = text[:torn], text[torn:]
        for piece in _PIECES.finditer(text):
            command, numbers = piece["command"], piece["numbers"] or ""
            if command in ("H", "f"):
                row, _, column = numbers.partition(";")
                self._row, self._column = int(row or 1) - 1, int(column or 1) - 1
            elif command in ("h", "l"):
                (self.modes.add if command == "h" else self.modes.discard)(numbers)
            elif piece["control"] == "\r":
                self._column = 0
            elif piece["control"] == "\n":
                self._row += 1
            elif piece["text"]:
                self._write(piece["text"])

    def _write(self, text: str) -> None:
        for char in text:
            assert self._row < LINES, "it writes below the screen"
            assert self._column < COLUMNS, "it writes beyond the right edge"
            self.cells[self._row][self._column] = char
            self._column += 1

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.cells]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Terminal:
    """A pseudo-terminal with ``tidegauge top`` in it."""

    def __init__(self, url: str, **variables: str) -> None:
        self._command = [sys.executable, "-m", "tidegauge", "top", "--api", url]
        self._environment = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **variables}
        self._begin()

    def _begin(self) -> None:
        self.screen = Screen()
        self.raw = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._end, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            self._command, stdin=inside, stdout=inside, stderr=inside, env=self._environment, start_new_session=True
        )
        os.close(inside)

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def wait_for(self, seen: Callable[[Screen], bool], what: str) -> None:
        """Read what it draws until it is ``seen``."""
        until_s = time.monotonic() + PATIENCE_S
        while not seen(self.screen):
            assert time.monotonic() < until_s, f"{what} is not seen:\n{self.screen.text}"
            if not self.read() and self.raw.startswith("tidegauge top: no answer from"):
                # It waits five seconds for its first answer, which this process has to give.
                self.close()
                self._begin()

    def read(self) -> bool:
        """What has been drawn meanwhile; whether the program still has the terminal."""
        if not select.select([self._end], [], [], 0.2)[0]:
            return True
        try:
            piece = os.read(self._end, 65536)
        except OSError:  # EIO: nobody has the other end any more
            return False
        text = self._decoder.decode(piece)
        self.raw += text
        self.screen.feed(text)
        return bool(piece)

    def end(self) -> int:
        """Its exit code, after all that it wrote at the end was read."""
        until_s = time.monotonic() + PATIENCE_S
        while self.read() and time.monotonic() < until_s:
            pass
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._end)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[CoordinatorService]:
    """A coordinator that was told of a cluster, with its own loop of incidents and actions."""
    coordinator = World().live(reports=120).coordinator
    settings = Settings(state_dir=tmp_path, cluster="lab")
    action_loop = ActionLoop(lambda: open_actions(settings, coordinator, StateFiles(tmp_path)), keep_incidents_s=1e6)
    pages = exporter_pages(settings)
    service = CoordinatorService(
        coordinator, AwayEngine(), pages, action_loop, cluster="lab", host="127.0.0.1", port=0,
        advertise_host="127.0.0.1", asks=EvidenceAsks(tmp_path / "asks"),
    )  # fmt: skip
    service.start()
    yield service
    service.stop()


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_reader_walks_from_the_cluster_to_a_rank_and_quits(
    service: CoordinatorService, terminals: list[Terminal]
) -> None:
    terminal = Terminal(service.url)
    terminals.append(terminal)
    # A picture comes in pieces: each of these may be seen before the others.
    terminal.wait_for(lambda screen: "critical 48211" in " ".join(screen.text.split()), "the incident of job 48211")
    terminal.wait_for(lambda screen: screen.lines[0].startswith(" tidegauge  lab"), "the cluster's name")
    job = ["\u25b8leak", "!!!", "48211", "ada"]
    terminal.wait_for(
        lambda screen: screen.lines[4].split()[:4] == job and "14\u201322 min" in screen.lines[4], "the leaking job"
    )
    terminal.press("\r")
    terminal.wait_for(lambda screen: "gpu-node-01" in screen.text, "the ranks")
    terminal.press("\r")
    terminal.wait_for(lambda screen: "allocated 6" in screen.text and "\u2588" in screen.text, "the rank's memory")
    terminal.wait_for(lambda screen: "job 48211 \u203a rank 11" in screen.lines[0], "whose it is")
    terminal.press("r")
    wanted = re.compile(rf"report: ({re.escape(service.url)}/report\?incident=\d+)$")
    terminal.wait_for(lambda screen: wanted.search(screen.lines[-1]) is not None, "the report's address")
    address = terminal.screen.lines[-1].split()[-1]
    terminal.press("\x1b")
    terminal.wait_for(lambda screen: "rank 11" not in screen.lines[0], "the job again")
    assert "?1049" in terminal.screen.modes
    terminal.press("q")
    assert terminal.end() == 0
    assert "?1049" not in terminal.screen.modes, "the terminal's own screen is back"
    assert address in terminal.raw.rpartition("\x1b[?1049l")[2], "the address stays to be copied"


def test_a_reader_sees_who_is_on_a_gpu_what_changed_and_is_refused_to_pause_from_elsewhere(
    service: CoordinatorService, terminals: list[Terminal]
) -> None:
    terminal = Terminal(service.url)
    terminals.append(terminal)
    terminal.wait_for(lambda screen: "48211" in screen.text, "the jobs")
    terminal.press("c")
    terminal.wait_for(lambda screen: "7 nodes by fullest GPU" in screen.text, "the nodes")
    terminal.wait_for(lambda screen: "gpu-node-01" in screen.text, "a node")
    terminal.press("\r")
    terminal.wait_for(lambda screen: "nodes \u203a gpu-node-03" in screen.lines[0], "the fullest node")
    terminal.wait_for(lambda screen: "\u2588\u2588\u00b7" in screen.text and "48230" in screen.text, "its GPUs")
    terminal.press("l")
    terminal.wait_for(lambda screen: "job began" in screen.text, "the log")
    terminal.press("/")  # the made-up cluster has a time of its own, its incidents have this machine's
    terminal.wait_for(lambda screen: "filter:" in screen.text, "the filter")
    terminal.press("opened\r")
    terminal.wait_for(lambda screen: "incident opened" in screen.text, "an incident in the log")
    terminal.wait_for(lambda screen: "filter:" not in screen.text, "the end of the filter")
    terminal.press("P")
    terminal.wait_for(lambda screen: "Pause all actions on lab?" in screen.text, "the question")
    terminal.press("\r")
    terminal.wait_for(lambda screen: "run `tidegauge policy pause` there" in screen.lines[-1], "what to do instead")
    terminal.press("q")
    assert terminal.end() == 0


def test_a_service_that_goes_away_is_said_and_its_figures_stay(
    service: CoordinatorService, terminals: list[Terminal]
) -> None:
    terminal = Terminal(service.url)
    terminals.append(terminal)
    terminal.wait_for(lambda screen: "48211" in screen.text, "the jobs")
    service.stop()
    terminal.wait_for(lambda screen: "NO ANSWER for" in screen.text, "that nobody answers")
    terminal.wait_for(lambda screen: "48211" in screen.text, "the jobs of before")
    terminal.press("q")
    assert terminal.end() == 0


def test_without_colours_it_says_the_same(service: CoordinatorService, terminals: list[Terminal]) -> None:
    terminal = Terminal(service.url, NO_COLOR="1", TERM="xterm")
    terminals.append(terminal)
    terminal.wait_for(lambda screen: "critical 48211" in " ".join(screen.text.split()), "the incident")
    terminal.wait_for(lambda screen: "leak !!!" in screen.text, "the job")
    colours = re.findall(r"\x1b\[[0-9;]*?(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38;[0-9;]+|48;[0-9;]+)m", terminal.raw)
    assert colours == []
    terminal.press("q")
    assert terminal.end() == 0


def test_on_sixteen_colours_only_those_are_used(service: CoordinatorService, terminals: list[Terminal]) -> None:
    terminal = Terminal(service.url, TERM="xterm-16color", COLORTERM="")
    terminals.append(terminal)
    terminal.wait_for(lambda screen: "leak !!!" in screen.text, "the jobs")
    assert re.search(r"\x1b\[[0-9;]*41m", terminal.raw), "a leak is red"
    assert not re.search(r"\x1b\[[0-9;]*[34]8;[25];", terminal.raw)
    terminal.press("q")
    assert terminal.end() == 0
