"""``tidegauge forget``: a user is nowhere any more, and another one stays as he was."""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from person_data import ADA, BOB, record_of
from person_search import places_of
from person_state import prepare
from sample_views import NOW_S
from tidegauge.cli.main import main
from tidegauge.cluster.coordinator.forgotten_list import read_forgotten
from tidegauge.cluster.coordinator.settings_store import JobSettingsStore
from tidegauge.cluster.incident_loops.action_switch import ActionSwitch
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.core.persons.forgotten import is_forgotten
from tidegauge_exporter.notify.delivery_journal import entries_of

HOLD_COORDINATOR = """
import sys
from pathlib import Path
from tidegauge.cluster.service_record import StateFiles, write_address
from tidegauge.cluster.store import open_store, sqlite_url
files = StateFiles(Path(sys.argv[1]))
store = open_store(sqlite_url(files.root))
write_address(files.api, "http://127.0.0.1:1")
print("writing", flush=True)
sys.stdin.read()
"""
HOLD_MAILS = """
import sys, time
from pathlib import Path
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
journal = DeliveryJournal(Path(sys.argv[1]) / "efficiency_mails.jsonl", wall_s=time.time)
print("writing", flush=True)
sys.stdin.read()
"""
HOLD_JOURNAL = """
import sys, time
from pathlib import Path
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
journal = DeliveryJournal(Path(sys.argv[1]) / "notified.jsonl", wall_s=time.time)
print("writing", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return prepare(tmp_path / "state")


def forget(files: StateFiles, *arguments: str, name: str = ADA.name) -> int:
    return main(["forget", name, *arguments, "--set", f"state_dir={files.root}"])


def exported(files: StateFiles, capsys: pytest.CaptureFixture[str], name: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["export", "--user", name, "--set", f"state_dir={files.root}"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    del told["index"]["made_unix_s"]
    return told


@contextmanager
def writing(script: str, files: StateFiles) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", script, str(files.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "writing\n"
            yield process
        finally:
            process.kill()


def test_the_search_finds_every_word_before_the_user_is_forgotten(files: StateFiles) -> None:
    found = places_of([*ADA.words, f"uid {ADA.uid}"], files.root)
    assert {line.split(": ")[1] for line in found} == {*ADA.words, f"uid {ADA.uid}"}
    assert {line.split(":")[0] for line in found} >= {
        "tidegauge.db", "notified.jsonl", "efficiency_mails.jsonl", "settings.json", "actions.json",
        "logs/coordinator.log", "logs/coordinator.log.1", "logs/notifier.log", "settings.json.damaged",
    }  # fmt: skip


def test_the_search_looks_into_what_is_compressed(tmp_path: Path) -> None:
    secret = zlib.compress(json.dumps({"host": "host-of-ada", "more": list(range(40))}).encode())
    (tmp_path / "raw").write_bytes(b"\0\1" + secret + b"tail")
    (tmp_path / "text").write_bytes(b'{"packed":"' + base64.b64encode(secret) + b'"}')
    assert places_of(["host-of-ada"], tmp_path) == ["raw: host-of-ada", "text: host-of-ada"]


def test_a_forgotten_user_is_in_no_byte_of_any_file(files: StateFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert forget(files, "--yes") == 0
    assert places_of([*ADA.words, f"uid {ADA.uid}", f"D{ADA.uid}"], files.root) == []
    page = capsys.readouterr().out
    assert [line.split()[-1] for line in page.splitlines() if "acts, their words and accounts" in line] == ["3"]
    counts = {line.split()[0]: line.split()[-1] for line in page.splitlines() if line.startswith(("logs/", "notified"))}
    assert counts == {"logs/": "10", "notified.jsonl": "8"}
    assert "stands for adalovelace in what stays" in page


def test_another_user_stays_to_the_byte(files: StateFiles, capsys: pytest.CaptureFixture[str]) -> None:
    before = exported(files, capsys, BOB.name)
    assert forget(files, "--yes") == 0
    after = exported(files, capsys, BOB.name)
    mine = {kind for kind in before if json.dumps(before[kind]) == json.dumps(after[kind])}
    assert set(before) - mine == {"grades", "acts", "journal", "switch"}, "where people speak of one another"
    assert [one["grade"] for one in after["grades"]] == [one["grade"] for one in before["grades"]]
    assert len(after["journal"]) == len(before["journal"])
    assert [one for one in after["journal"] if one["key"] != "begun"] == [
        one for one in before["journal"] if one["key"] != "begun"
    ]


def test_forgetting_again_changes_no_byte(files: StateFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert forget(files, "--yes") == 0
    before = {path: path.read_bytes() for path in files.root.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert forget(files, "--yes") == 0
    assert "nothing is kept about adalovelace on this head" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in files.root.rglob("*") if path.is_file()} == before


def test_a_dry_run_says_what_would_go_and_changes_nothing(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    before = exported(files, capsys, ADA.name)
    assert forget(files, "--dry-run") == 0
    page = capsys.readouterr().out
    assert [line.split()[-1] for line in page.splitlines() if line.startswith(("logs/", "settings.json"))] == [
        "1",
        "10",
    ]
    assert "Nothing was changed. `tidegauge forget adalovelace` does it." in page
    assert exported(files, capsys, ADA.name) == before


def test_nobody_is_forgotten_without_being_asked(
    files: StateFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert forget(files) == 2
    assert "add --yes" in capsys.readouterr().err
    assert places_of([ADA.name], files.root) != []


def test_a_user_with_running_jobs_is_refused_unless_they_go_too(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(sqlite_url(files.root))
    store.jobs.save([record_of(ADA, started_unix_s=NOW_S, ended_unix_s=None, end=None)])
    store.close()
    assert forget(files, "--yes") == 3
    assert f"NOTHING WAS DELETED: {ADA.name} has running jobs" in (said := capsys.readouterr().err)
    assert ADA.job_id in said
    assert forget(files, "--yes", "--running-too") == 0
    assert places_of(ADA.words, files.root) == []


def test_nodes_are_told_without_the_name(files: StateFiles) -> None:
    assert forget(files, "--yes") == 0
    forgotten = read_forgotten(files.forgotten)
    assert is_forgotten(forgotten, ADA.uid, ADA.job_id, NOW_S - 1e9)
    assert not is_forgotten(forgotten, BOB.uid, BOB.job_id, NOW_S - 1e9)


def test_the_files_of_others_can_still_be_read(files: StateFiles) -> None:
    assert forget(files, "--yes") == 0
    settings = JobSettingsStore(files.job_settings, wall_s=lambda: NOW_S, reporting=lambda: ())
    assert settings.get(BOB.job_id, BOB.uid) is not None
    assert settings.get(ADA.job_id, ADA.uid) is None
    paused = ActionSwitch(files.actions).paused()
    assert paused is not None
    assert paused.startswith("by forgotten-")
    assert paused.endswith(f"{BOB.name} asked for it")
    assert BOB.script in (files.logs / "coordinator.log").read_text()
    assert len((files.logs / "coordinator.log").read_text().splitlines()) == 6


def test_the_thread_in_a_channel_stays_known_so_that_it_is_not_sent_again(files: StateFiles) -> None:
    assert forget(files, "--yes") == 0
    keys = [key for sink, key in entries_of(files.journal) if sink == "slack"]
    assert sum(key.startswith("incident/") for key in keys) == 2
    assert sum(key.startswith("storm/") for key in keys) == 2


def test_the_running_coordinator_and_notifier_are_ended_before_they_write_again(files: StateFiles) -> None:
    with writing(HOLD_COORDINATOR, files) as coordinator, writing(HOLD_JOURNAL, files) as notifier:
        assert forget(files, "--yes") == 0
        assert coordinator.wait(5) == notifier.wait(5) == -9
    assert places_of(ADA.words, files.root) == []


def test_while_mails_on_unused_memory_are_sent_the_user_is_told_to_run_it_again(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    with writing(HOLD_MAILS, files):
        assert forget(files, "--yes") == 3
    said = capsys.readouterr().err
    assert "`tidegauge efficiency --mail --send` runs now" in said
    assert "Not everything is deleted: run this again" in said
    assert forget(files, "--yes") == 0
    assert places_of(ADA.words, files.root) == []


def test_a_user_is_forgotten_on_the_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["forget", ADA.name, "--yes", "--set", f"state_dir={tmp_path}"]) == 3
    assert "Run this on the head as the user who runs the service" in capsys.readouterr().err
