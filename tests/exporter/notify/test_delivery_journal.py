from __future__ import annotations

import functools
import json
import logging
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.notify.telling import Clock
from tidegauge_exporter.notify.delivery_journal import (
    FORMAT,
    KEEP_OVER_S,
    KEEP_S,
    MAX_ENTRIES,
    OUTDATED_LINES,
    DeliveryJournal,
    DeliveryJournalError,
    entries_of,
)

SAY_AND_HANG = """
import sys, time
from pathlib import Path
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
journal = DeliveryJournal(Path(sys.argv[1]), wall_s=time.time)
for number in range(50):
    journal.say("slack", str(number), "said")
    print(number, flush=True)
time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "notified.jsonl"


def again(journal: DeliveryJournal, path: Path, clock: Clock | None = None) -> DeliveryJournal:
    """After a restart."""
    journal.close()
    return DeliveryJournal(path, wall_s=clock or Clock())


def test_delivery_journal_survives_a_restart(path: Path) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())
    journal.say("slack", "incident/1", "first")
    journal.say("slack", "incident/1", "second")
    journal.say("grafana", "incident/1", 'quote " and\nline')
    for known in (journal, journal := again(journal, path)):
        assert known.said("slack", "incident/1") == "second"
        assert known.said("grafana", "incident/1") == 'quote " and\nline'
        assert known.said("slack", "incident/2") is None


def test_keys_are_those_of_one_sink_with_a_prefix(path: Path) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())
    for sink, key in (("slack", "storm/1"), ("slack", "other"), ("grafana", "storm/2"), ("slack", "storm/3")):
        journal.say(sink, key, "x")
    assert journal.keys("slack", "storm/") == ["storm/1", "storm/3"]


def test_the_files_are_private(path: Path) -> None:
    DeliveryJournal(path, wall_s=Clock()).say("slack", "key", "value")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_sigkill_loses_nothing_that_say_has_returned_from(path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", SAY_AND_HANG, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        told = [child.stdout.readline().strip() for _ in range(50)]
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    journal = DeliveryJournal(path, wall_s=Clock(0.0))
    assert [journal.said("slack", number) for number in told] == ["said"] * 50


@functools.cache
def twenty_lines() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        journal = DeliveryJournal(Path(folder) / "notified.jsonl", wall_s=Clock())
        for number in range(20):
            journal.say("slack", str(number), f"value {number}")
        journal.close()
        return (Path(folder) / "notified.jsonl").read_bytes()


@given(length=st.integers(0, len(twenty_lines())))
def test_a_file_cut_anywhere_is_what_was_said_up_to_there(length: int) -> None:
    content = twenty_lines()[:length]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notified.jsonl"
        path.write_bytes(content)
        journal = DeliveryJournal(path, wall_s=Clock())
        found = [key for key in map(str, range(20)) if journal.said("slack", key)]
        journal.close()
    assert found == [str(number) for number in range(content.count(b"\n") - 1)]


@pytest.mark.parametrize("rubbish", [b"\x00\xff not json\n", b"[1,2]\n", b"{}\n", b"[" * 100_000 + b"\n"])
def test_a_damaged_line_is_kept_aside_and_the_rest_goes_on(
    path: Path, rubbish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())
    journal.say("slack", "before", "1")
    journal.close()
    content = path.read_bytes() + rubbish + json.dumps(["slack", "after", "2", False, 0.0]).encode() + b"\n"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        journal = DeliveryJournal(path, wall_s=Clock(0.0))
    assert (journal.said("slack", "before"), journal.said("slack", "after")) == ("1", "2")
    assert path.with_name("notified.jsonl.damaged").read_bytes() == content
    assert "1 lines cannot be read" in caplog.text
    caplog.clear()
    again(journal, path, Clock(0.0))
    assert caplog.text == ""


def test_a_file_of_something_else_is_kept_aside(path: Path) -> None:
    path.write_text('{"another": "format"}\n')
    journal = DeliveryJournal(path, wall_s=Clock())
    journal.say("slack", "key", "value")
    assert path.with_name("notified.jsonl.damaged").read_text() == '{"another": "format"}\n'
    assert again(journal, path).said("slack", "key") == "value"


def test_a_second_notifier_is_refused(path: Path) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())
    with pytest.raises(DeliveryJournalError, match="another notifier"):
        DeliveryJournal(path, wall_s=Clock())
    again(journal, path)


def test_the_file_does_not_grow_with_every_change(path: Path) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())
    for number in range(2 * OUTDATED_LINES + 10):
        journal.say("slack", "incident/1", str(number))
    assert path.read_bytes().count(b"\n") < OUTDATED_LINES + 20
    assert again(journal, path).said("slack", "incident/1") == str(2 * OUTDATED_LINES + 9)


def test_delivery_journal_forgets_closed_keys_after_a_month_others_after_six(path: Path) -> None:
    clock = Clock()
    journal = DeliveryJournal(path, wall_s=clock)
    journal.say("slack", "over", "1", over=True)
    journal.say("slack", "open", "1")
    clock.now_s += KEEP_OVER_S + 1
    journal = again(journal, path, clock)
    assert journal.keys("slack") == ["open"]
    clock.now_s += KEEP_S - KEEP_OVER_S
    assert again(journal, path, clock).keys("slack") == []


def test_too_many_entries_cost_those_that_are_over_first(path: Path) -> None:
    lines = [["slack", "open", "1", False, 0.0]]
    lines += [["slack", f"over {number}", "1", True, 0.0] for number in range(MAX_ENTRIES)]
    path.write_bytes(FORMAT + b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    journal = DeliveryJournal(path, wall_s=Clock(0.0))
    assert len(journal.keys("slack")) == MAX_ENTRIES
    assert journal.said("slack", "over 0") is None
    for number in range(OUTDATED_LINES + 1):
        journal.say("slack", f"new {number}", "1", over=True)
    assert len(journal.keys("slack")) == MAX_ENTRIES
    assert journal.said("slack", "open") == "1"
    assert journal.said("slack", f"new {OUTDATED_LINES}") == "1"


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow beyond some bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_said_once_forgets_nothing_and_mends_itself(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())
    journal.say("slack", "before", "1")
    with full_disk():
        journal.say("slack", "meanwhile", "2")
        journal.say("slack", "meanwhile too", "3")
        assert journal.said("slack", "meanwhile") == "2"
        problem = journal.problem
    assert "cannot be written" in (problem or "")
    assert caplog.text.count("cannot be written") == 1
    journal.say("slack", "later", "4")
    assert journal.problem is None
    assert again(journal, path).keys("slack") == ["before", "meanwhile", "meanwhile too", "later"]


def test_a_full_disk_leaves_what_was_there(path: Path) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())
    journal.say("slack", "before", "1")
    with full_disk():
        journal.say("slack", "meanwhile", "2")
        journal = again(journal, path)
    assert again(journal, path).said("slack", "before") == "1"


def test_a_folder_that_is_not_there_is_a_problem_and_no_crash(tmp_path: Path) -> None:
    journal = DeliveryJournal(tmp_path / "gone" / "notified.jsonl", wall_s=Clock())
    journal.say("slack", "key", "value")
    assert journal.said("slack", "key") == "value"
    assert "cannot be written" in (journal.problem or "")


def test_threads_do_not_disturb_each_other(path: Path) -> None:
    journal = DeliveryJournal(path, wall_s=Clock())

    def say(sink: str) -> None:
        for number in range(100):
            journal.say(sink, str(number), sink)

    threads = [threading.Thread(target=say, args=(f"sink {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal = again(journal, path)
    assert all(len(journal.keys(f"sink {number}")) == 100 for number in range(4))


def test_entries_are_revised_and_deleted_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "notified.jsonl"
    journal = DeliveryJournal(path, wall_s=lambda: 1_800_000_000.0)
    for key in ("stays", "changes", "goes"):
        journal.say("slack", key, f"ada {key}")
    new = {"stays": "ada stays", "changes": "x", "goes": None}
    assert journal.revise(lambda _sink, key, _value: new[key]) == 2
    assert journal.said("slack", "goes") is None
    assert entries_of(path) == {("slack", "stays"): "ada stays", ("slack", "changes"): "x"}
    assert b"goes" not in path.read_bytes()
    journal.close()


def test_the_entries_of_a_missing_journal_are_none(tmp_path: Path) -> None:
    assert entries_of(tmp_path / "notified.jsonl") == {}
