"""What is being waited for, on a terminal: words of a job are words there, neither markup nor commands."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from rank_profiles import STEADY
from slow_work import slow_terminal
from tidegauge.cli.main import main
from tidegauge.cli.output import progress, said_when_slow

HOSTILE = "rank [red]0[/red] on [link=file:///etc]x[/link] \x1b]0;owned\x07 \x9b31m \u202ehost [/]"


def test_on_a_terminal_a_sentence_is_shown_as_it_is_and_commands_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    try:
        with open(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            with progress("snapshot") as say:
                say(HOSTILE)
            terminal.flush()
            text = drawn_on(ours)
    finally:
        os.close(ours)
    assert "[red]0[/red] on [link=file:///etc]" in text, "brackets are no markup"
    assert [mark for mark in ("\x1b]", "\x07", "\x9b", "\u202e") if mark in text] == []


def test_progress_prints_a_line_if_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("snapshot") as say:
        say(HOSTILE)
    [line] = capsys.readouterr().err.splitlines()
    assert "[red]0[/red]" in line
    assert line.isprintable()


def test_a_slow_answer_is_spoken_of_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with said_when_slow("waiting", after_s=0.0):
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
    assert capsys.readouterr().err == ""
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            with said_when_slow("never said", after_s=3600.0):
                pass
            with said_when_slow("waiting for the answer", after_s=0.0):
                assert os.read(ours, 1000).decode().split() == ["tidegauge:", "waiting", "for", "the", "answer", "…"]
    finally:
        os.close(ours)


def test_slow_work_is_told_where_the_caller_says_and_other_work_is_not() -> None:
    told: SimpleQueue[str] = SimpleQueue()
    with said_when_slow("short", after_s=1000, say=told.put):
        pass
    with said_when_slow("long", after_s=0, say=told.put):
        assert told.get(timeout=60) == "long …"
    assert told.empty()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["profile"], f"replaying {STEADY}"),
        (["profile", "diff", STEADY], "replaying and comparing the snapshots"),
        (["diff", STEADY], "reading and comparing the snapshots"),
    ],
)
def test_a_command_that_reads_large_files_says_so(
    command: list[str | Path], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = slow_terminal(monkeypatch)
    assert main([*map(str, command), str(STEADY)]) == 0
    assert told() == [f"tidegauge: {line} …"]


def drawn_on(terminal: int) -> str:
    """All that is there by now."""
    os.set_blocking(terminal, False)
    chunks: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while True:
            chunks.append(os.read(terminal, 1 << 16))
    return b"".join(chunks).decode(errors="replace")


def test_progress_in_a_pipe_is_at_most_a_line_in_its_period(capsys: pytest.CaptureFixture[str]) -> None:
    times_s = iter([0.0, 3.0, 9.9, 10.0, 12.0])
    with progress("whatif", every_s=10.0, monotonic_s=lambda: next(times_s)) as say:
        for number in range(5):
            say(f"trying setting {number}")
    assert capsys.readouterr().err.splitlines() == [
        "tidegauge whatif: trying setting 0 …",
        "tidegauge whatif: trying setting 3 …",
    ]


def test_in_a_log_what_goes_on_is_a_line_when_it_changes_and_one_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    times_s = iter(half / 2 for half in range(1000))
    with progress("profile", monotonic_s=lambda: next(times_s)) as say:
        for _ in range(300):  # 150 s
            say("0 of 1 ranks done")
        say("1 of 1 ranks done")
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["tidegauge profile: 0 of 1 ranks done …"] * 3 + ["tidegauge profile: 1 of 1 ranks done …"]
