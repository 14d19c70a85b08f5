"""Sockets are real and lie in a run directory of the test's own; the process that listens is this one."""

from __future__ import annotations

import json
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tidegauge.agent.processes.command_socket import (
    MAX_REPLY_BYTES,
    MAX_REPLY_TEXT_CHARS,
    NotAskedError,
    ProcessSocket,
    ask,
)
from tidegauge.agent.run_dirs.folders import HostRunDir, UserFolder
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import parse_proc_stat
from tidegauge.core.run_dirs import socket_name

UID = os.geteuid()
PATIENCE_S = 60.0


def this_process() -> ProcessId:
    stat = parse_proc_stat(Path("/proc/self/stat").read_text())
    assert stat is not None
    return stat.process


class Listener:
    """A process's command socket; ``reply`` gets the line that came and gives the bytes that go back."""

    def __init__(self, folder: Path, name: str, reply: Callable[[bytes], bytes]) -> None:
        self.heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        """The first line of every connection; empty for one that was closed without a word."""
        self._reply = reply
        self._socket = socket.socket(socket.AF_UNIX)
        descriptor = os.open(folder, os.O_RDONLY)
        self._socket.bind(f"/proc/self/fd/{descriptor}/{name}")
        os.close(descriptor)
        self._socket.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines, suppress(BrokenPipeError):
                line = lines.readline()
                self.heard.put(line)
                connection.sendall(self._reply(line))

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._socket.close()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run" / str(UID)).mkdir(parents=True)
    return tmp_path / "run"


@pytest.fixture
def listen(run_dir: Path) -> Iterator[Callable[..., Listener]]:
    listeners: list[Listener] = []

    def begin(reply: Callable[[bytes], bytes], *, folder: Path | None = None) -> Listener:
        listeners.append(Listener(folder or run_dir / str(UID), socket_name(this_process()), reply))
        return listeners[-1]

    yield begin
    for listener in listeners:
        listener.close()


def echo(line: bytes) -> bytes:
    if not line:
        return b""
    return json.dumps({"ok": True, "got": json.loads(line)}).encode() + b"\n"


def place(run_dir: Path, *, uid: int = UID, name: str | None = None, process: ProcessId | None = None) -> ProcessSocket:
    folder = UserFolder(HostRunDir(run_dir), uid)
    return ProcessSocket(folder, uid, name or socket_name(this_process()), process or this_process())


def refused(to: ProcessSocket) -> str:
    with pytest.raises(NotAskedError) as error:
        ask(to, {"command": "ping"}, timeout_s=PATIENCE_S)
    return str(error.value)


def test_a_request_gets_its_answer(run_dir: Path, listen: Callable[..., Listener]) -> None:
    listen(echo)
    assert ask(place(run_dir), {"command": "ping"}, timeout_s=PATIENCE_S) == {"ok": True, "got": {"command": "ping"}}


def test_a_long_run_directory_is_no_hindrance(tmp_path: Path, listen: Callable[..., Listener]) -> None:
    run_dir = tmp_path / ("x" * 120)
    (run_dir / str(UID)).mkdir(parents=True)
    listen(echo, folder=run_dir / str(UID))
    assert ask(place(run_dir), {}, timeout_s=PATIENCE_S)["ok"] is True


def test_a_process_without_a_socket_is_said_to_have_none(run_dir: Path) -> None:
    assert "has no command socket" in refused(place(run_dir))


def test_a_socket_that_nobody_listens_on_is_a_process_that_ended(
    run_dir: Path, listen: Callable[..., Listener]
) -> None:
    listen(echo).close()
    assert "no longer listens" in refused(place(run_dir))


def test_a_link_to_another_daemons_socket_is_not_followed(
    run_dir: Path, tmp_path: Path, listen: Callable[..., Listener]
) -> None:
    (tmp_path / "daemon").mkdir()
    daemon = listen(echo, folder=tmp_path / "daemon")
    name = socket_name(this_process())
    (run_dir / str(UID) / name).symlink_to(tmp_path / "daemon" / name)
    assert "is not a socket" in refused(place(run_dir))
    assert daemon.heard.empty()


def test_another_name_of_another_daemons_socket_is_not_connected_to(
    run_dir: Path, tmp_path: Path, listen: Callable[..., Listener]
) -> None:
    (tmp_path / "daemon").mkdir()
    daemon = listen(echo, folder=tmp_path / "daemon")
    name = socket_name(this_process())
    os.link(tmp_path / "daemon" / name, run_dir / str(UID) / name)
    assert "has 2 hard links" in refused(place(run_dir))
    assert daemon.heard.empty()


def test_a_users_folder_that_is_a_link_is_not_followed(tmp_path: Path, listen: Callable[..., Listener]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "rings").mkdir()
    (tmp_path / "rings" / str(UID)).symlink_to(tmp_path / "real")
    daemon = listen(echo, folder=tmp_path / "real")
    assert "cannot be reached" in refused(place(tmp_path / "rings"))
    assert daemon.heard.empty()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, listen: Callable[..., Listener]) -> None:
    folder = tmp_path / str(UID + 1)
    folder.mkdir()
    daemon = listen(echo, folder=folder)
    assert f"the folder belongs to uid {UID}" in refused(place(tmp_path, uid=UID + 1))
    assert daemon.heard.empty()


def test_a_file_in_place_of_the_socket_is_refused(run_dir: Path) -> None:
    (run_dir / str(UID) / socket_name(this_process())).write_text("no socket")
    assert "is not a socket" in refused(place(run_dir))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(ProcessId(1, 0), id="somebody else's pid"),
        pytest.param(ProcessId(os.getpid(), 1), id="a pid that was used again"),
    ],
)
def test_process_socket_sends_nothing_to_a_different_process(
    run_dir: Path, listen: Callable[..., Listener], other: ProcessId
) -> None:
    listener = listen(lambda _: b"")
    assert "nothing was sent" in refused(place(run_dir, process=other))
    assert listener.heard.get(timeout=PATIENCE_S) == b"", "it connected, and hung up without a word"


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"", "hung up"),
        (b"not json\n", "not a JSON object"),
        (b"[1]\n", "not a JSON object"),
        (b"[" * 60000 + b"\n", "not a JSON object"),
        (b'{"a": ' + b"[" * 400 + b"]" * 400 + b"}\n", "nested"),
        (b'{"step": ' + b"1" * 400 + b"}\n", "a number"),
        (b'{"step": Infinity}\n', "a number"),
        (b'{"step": 1e999}\n', "a number"),
        (b"x" * (MAX_REPLY_BYTES + 1), "longer than"),
    ],
)
def test_an_answer_that_is_none_is_said(run_dir: Path, listen: Callable[..., Listener], reply: bytes, why: str) -> None:
    listen(lambda _: reply)
    assert why in refused(place(run_dir))


def test_texts_in_an_answer_are_bounded_lines(run_dir: Path, listen: Callable[..., Listener]) -> None:
    said = {"detail": "red\x1b[31m\nERROR root: \ud800", "files": ["a\rb"], "\x07": "x" * 60000}
    listen(lambda _: json.dumps(said).encode() + b"\n")
    answer = ask(place(run_dir), {}, timeout_s=PATIENCE_S)
    assert answer == {"detail": "red [31m ERROR root:  ", "files": ["a b"], " ": "x" * MAX_REPLY_TEXT_CHARS}


def test_a_process_that_does_not_answer_costs_no_more_than_the_time_allowed(
    run_dir: Path, listen: Callable[..., Listener]
) -> None:
    release = threading.Event()

    def late(_: bytes) -> bytes:
        release.wait(PATIENCE_S)
        return b""

    listen(late)
    with pytest.raises(NotAskedError, match=r"did not answer within 0\.05 s"):
        ask(place(run_dir), {}, timeout_s=0.05)
    release.set()


def test_descriptors_are_not_left_open(run_dir: Path, listen: Callable[..., Listener]) -> None:
    listen(echo)
    ask(place(run_dir), {}, timeout_s=PATIENCE_S)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ask(place(run_dir), {}, timeout_s=PATIENCE_S)
        refused(place(run_dir, process=ProcessId(os.getpid(), 1)))
        refused(place(run_dir, name="away.sock"))
    # The listener may still have a connection of its own open.
    assert len(os.listdir("/proc/self/fd")) <= before + 2
