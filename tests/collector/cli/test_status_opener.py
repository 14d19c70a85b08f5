"""What ``tidegauge status`` says of the node's opener: a real server of this user's own on a real socket."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegauge.agent.opening import remote
from tidegauge.agent.opening.wire import Kind, OpenerRequest, encode_request
from tidegauge.cli.main import main
from tidegauge.cli.service import opener as opener_words
from tidegauge.cli.service_api import first_running
from tidegauge.cluster.service_record import (
    NodeSpec,
    ServiceRecord,
    StateFiles,
    prepare_state_dir,
    write_address,
    write_record,
)
from tidegauge.cluster.views import SILENT_OPENER
from tidegauge.opener.server import OpenerServer
from tidegauge.osproc.processes import identity_of
from tidegauge.steady_clock import read_boot_id

AGENT = 4300
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="an opener is believed only if it is root's")


class Node:
    """A node without the coordinator, whose agent has an opener; nobody listens at its socket yet."""

    def __init__(self, root: Path, *, opener: bool = True) -> None:
        self.files: StateFiles = prepare_state_dir(root / "state")
        self.socket = root / "socket"
        self.run_dir = root / "run"
        settings = {"opener_socket": str(self.socket), "run_dir": str(self.run_dir)} if opener else {}
        spec = NodeSpec(
            state_dir=str(self.files.root), engine_dir="e", token_file="t", head_address="10.0.0.1:6399",
            node_address="10.0.0.2", is_head=False, settings=settings,
        )  # fmt: skip
        me = identity_of(os.getpid())
        assert me is not None
        write_record(self.files, ServiceRecord(me, read_boot_id(), "running", "running", spec, 1.0))
        write_address(self.files.agent, "10.0.0.2:9494")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def listen(self, *, answers: bool = True, uid: int = AGENT, run_dir: str = "run") -> None:
        if os.geteuid() == 0:
            os.chown(self.files.root, AGENT, -1)
        self.listener.bind(str(self.socket))
        self.listener.listen()
        if answers:
            server = OpenerServer(self.listener, uid, [self.run_dir.with_name(run_dir)], self.files.root / "kubelet")
            threading.Thread(target=server.serve, daemon=True).start()

    def close(self) -> None:
        self.listener.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    one = Node(tmp_path)
    yield one
    one.close()


def test_status_finds_the_agents_unit_where_nothing_runs_in_its_own_directory(node: Node, tmp_path: Path) -> None:
    files, record = first_running([tmp_path / "nothing", node.files.root])
    assert (files.root, record is not None and not record.spec.is_head) == (node.files.root, True)
    assert first_running([tmp_path / "nothing"])[1] is None


def status(node: Node, *arguments: str) -> int:
    return main(["status", "--set", f"state_dir={node.files.root}", *arguments])


def lines_on_the_opener(text: str) -> list[str]:
    found = re.search(r"^opener    .*\n(?: {10}.*\n)*", text, re.MULTILINE)
    return [] if found is None else [line[10:] for line in found[0].splitlines()]


@as_root
def test_status_of_a_node_by_root_says_that_its_opener_answers_and_what_it_has_refused(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.listen()
    assert status(node) == 0
    (line,) = lines_on_the_opener(capsys.readouterr().out)
    assert re.fullmatch(r"answers, runs for [0-9.]+ s, has refused nothing", line)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as odd:
        odd.connect(str(node.socket))
        odd.send(encode_request(OpenerRequest(Kind.RUN_DIRS)))  # root may ask for no more than the status
        assert odd.recv(1) == b""
    assert status(node, "--json") == 0
    told = json.loads(capsys.readouterr().out)["local"]["opener"]
    assert (told["answers"], told["refused_connections"], told["refused_requests"]) == (True, 0, 1)
    assert (told["socket"], told["problem"]) == (str(node.socket), None)


@as_root
@pytest.mark.parametrize(
    ("started", "why"),
    [
        ({"uid": 12}, f"it serves uid 12 alone, the agent's is {AGENT}); start it with --user {AGENT}"),
        (
            {"run_dir": "other"},
            "it opens files in {root}/other, not in {root}/run); start it with --run-dir {root}/run",
        ),
    ],
    ids=["user", "run-dir"],
)
def test_status_of_a_node_says_that_its_opener_serves_another_agent(
    node: Node, capsys: pytest.CaptureFixture[str], started: dict[str, Any], why: str
) -> None:
    node.listen(**started)
    status(node, "--json")
    told = json.loads(capsys.readouterr().out)["local"]["opener"]
    assert (told["answers"], told["refused_requests"]) == (False, 0)
    assert told["problem"] == f"{SILENT_OPENER} ({why.format(root=node.run_dir.parent)}"


def test_the_agents_own_user_hears_that_the_opener_serves_another(node: Node) -> None:
    error = remote.OpenerAwayError("away")
    error.__cause__ = PermissionError(errno.EACCES, "Permission denied")
    own = opener_words._without_answer(node.socket, error, os.geteuid())
    assert own.answers is False
    assert own.problem is not None
    assert own.problem.endswith(f"it serves another one); start it with --user {os.geteuid()}")
    other = opener_words._without_answer(node.socket, error, os.geteuid() + 1)
    assert (other.answers, "run this as root" in (other.problem or "")) == (None, True)


def test_status_of_a_node_says_in_the_heads_words_that_its_opener_does_not_run(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(node) == 0, "as for the head"
    (line,) = lines_on_the_opener(capsys.readouterr().out)
    assert line.startswith(f"{SILENT_OPENER} (nobody listens at {node.socket}: it does not run); see `systemctl status")
    assert status(node, "--json") == 0
    told = json.loads(capsys.readouterr().out)["local"]["opener"]
    assert (told["answers"], told["problem"]) == (False, line)


@as_root
def test_status_of_a_node_says_that_its_opener_hangs(
    node: Node, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "ANSWER_S", 0.1)
    node.listen(answers=False)
    status(node)
    (line,) = lines_on_the_opener(capsys.readouterr().out)
    assert line.startswith(f"{SILENT_OPENER} (no answer at {node.socket} within 2 s: it is stopped, or hangs); see ")


def test_status_of_a_node_whose_opener_is_older_does_not_call_it_silent(
    node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    node.listen(answers=False)
    threading.Thread(target=lambda: node.listener.accept()[0].close(), daemon=True).start()
    status(node)
    (line,) = lines_on_the_opener(capsys.readouterr().out)
    assert line.startswith("the opener hangs up: it is of an older version, or all its places are taken")


def test_status_tells_how_long_one_request_hangs() -> None:
    look = opener_words.OpenerLook("s", True, None, 7200.0, 2, 1, 40.0)
    assert opener_words.in_words(look) == [
        "answers, runs for 2 h, has refused 2 connections and 1 request",
        "one request hangs for 40 s, over a process or a disk; others do not wait",
    ]


def test_status_of_a_node_whose_agent_opens_files_itself_says_nothing_of_an_opener(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, opener=False)
    assert status(node) == 0
    assert "opener" not in capsys.readouterr().out
    status(node, "--json")
    assert json.loads(capsys.readouterr().out)["local"]["opener"] is None
    node.close()
