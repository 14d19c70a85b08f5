"""`RemoteOpener` beside an opener that is stopped, or hangs: one short wait, and then nobody waits for it."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest

from tidegauge.agent.opening.remote import ANSWER_S, PATIENCE_S, PING_S, OpenerAwayError, RemoteOpener
from tidegauge.agent.opening.wire import Kind, OpenerReply, decode_request, encode_reply
from tidegauge.core.ids import ProcessId


class StoppedOpener:
    """An opener that answers while ``runs``, and later what it was asked meanwhile; waits cost no time here."""

    def __init__(self) -> None:
        self.runs = True
        self.hangs_over: set[Kind] = set()
        """What it answers nobody."""
        self.has_ended = False
        self.waited_s: list[float] = []

    def connect(self, _: Path) -> socket.socket:
        if self.has_ended:
            raise ConnectionRefusedError
        return cast("socket.socket", _Connection(self))


class _Connection:
    """The agent's end of one connection."""

    def __init__(self, opener: StoppedOpener) -> None:
        self._opener = opener
        self._asked: list[bytes] = []
        self._timeout_s: float | None = None
        self._is_closed = False

    def settimeout(self, seconds: float) -> None:
        if self._is_closed:
            raise OSError("closed")
        self._timeout_s = seconds

    def sendall(self, data: bytes) -> None:
        self._asked.append(data)

    def recvmsg(self, *_: int) -> tuple[bytes, list[tuple[int, int, bytes]], int, None]:
        opener = self._opener
        if opener.has_ended:
            return b"", [], 0, None
        if opener.runs and decode_request(self._asked[0]).kind not in opener.hangs_over:
            self._asked.pop(0)
            return encode_reply(OpenerReply(tail=b"/dev/shm/tidegauge")), [], 0, None
        assert self._timeout_s is not None
        opener.waited_s.append(self._timeout_s)
        raise TimeoutError if self._timeout_s else BlockingIOError

    def close(self) -> None:
        self._is_closed = True


@pytest.fixture
def process() -> StoppedOpener:
    return StoppedOpener()


@pytest.fixture
def opener(process: StoppedOpener) -> RemoteOpener:
    opener = RemoteOpener(Path("socket"), connect=process.connect)
    opener.check()
    return opener


def ask_everything(opener: RemoteOpener) -> int:
    """How many of some requests are answered."""
    answers = 0
    for act in (opener.check, lambda: opener.mount_namespaces([]), lambda: opener.owner_of_user_namespace(7)):
        with suppress(OpenerAwayError):
            act()
            answers += 1
    with suppress(OpenerAwayError), opener.entered(ProcessId(7, 7), 1):
        answers += 1
    return answers


def test_a_stopped_opener_is_waited_for_once(opener: RemoteOpener, process: StoppedOpener) -> None:
    process.runs = False
    for _ in range(100):
        assert ask_everything(opener) == 1, "no pid at all is no request"
    assert sum(process.waited_s) == ANSWER_S + PING_S <= 3.0


def test_an_opener_that_does_not_serve_a_run_directory_is_of_no_use(process: StoppedOpener) -> None:
    served = Path("/dev/shm/tidegauge")
    RemoteOpener(Path("socket"), [served], connect=process.connect).check()
    with pytest.raises(FileNotFoundError, match="does not serve /srv/run: start it with --run-dir /srv/run"):
        RemoteOpener(Path("socket"), [served, Path("/srv/run")], connect=process.connect).check()


def test_connections_that_were_kept_are_not_waited_for_one_by_one(process: StoppedOpener) -> None:
    opener = RemoteOpener(Path("socket"), connect=process.connect)
    with opener.entered(ProcessId(7, 7), 1), opener.entered(ProcessId(8, 8), 1):
        pass  # two are kept now
    process.runs = False
    with pytest.raises(OpenerAwayError):
        opener.check()
    assert sum(process.waited_s) == ANSWER_S + PING_S


def test_what_it_held_is_let_go_without_a_wait(opener: RemoteOpener, process: StoppedOpener) -> None:
    with opener.entered(ProcessId(7, 7), 1) as namespace:
        process.runs = False
        with pytest.raises(OpenerAwayError):
            namespace.open(Path("/dev/shm/tidegauge"))
    assert sum(process.waited_s) == ANSWER_S + PING_S


def test_it_is_asked_again_as_soon_as_it_answers(opener: RemoteOpener, process: StoppedOpener) -> None:
    process.runs = False
    assert ask_everything(opener) == 1
    process.runs = True
    assert ask_everything(opener) == 4


def test_one_that_was_started_anew_is_asked_again(opener: RemoteOpener, process: StoppedOpener) -> None:
    process.runs = False
    assert ask_everything(opener) == 1
    process.has_ended = True
    assert ask_everything(opener) == 1
    process.has_ended, process.runs = False, True
    assert ask_everything(opener) == 4


def test_one_act_that_hangs_is_waited_for_while_others_are_answered(
    opener: RemoteOpener, process: StoppedOpener
) -> None:
    process.hangs_over = {Kind.USER_NAMESPACE}
    assert ask_everything(opener) == 3
    assert process.waited_s == [ANSWER_S, PATIENCE_S]
    process.hangs_over = set()
    assert ask_everything(opener) == 4
