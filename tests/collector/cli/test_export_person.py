"""``tidegauge export --user``: everything that the head keeps about one person."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from person_data import ADA, BOB
from person_state import LINES, prepare
from tidegauge.cli.main import main
from tidegauge.cli.persons.export import KINDS


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return prepare(tmp_path / "state").root


def exported(state: Path, capsys: pytest.CaptureFixture[str], name: str) -> Any:
    assert main(["export", "--user", name, "--set", f"state_dir={state}"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_export_has_all_kinds_and_nothing_of_others(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = exported(state, capsys, ADA.name)
    assert told["index"]["user"] == ADA.name
    assert told["index"]["uids"] == [ADA.uid]
    assert {kind: told["index"]["kinds"][kind]["entries"] for kind in KINDS} == {
        "job_records": 1, "job_memory": 1, "evidence": 1, "profiles": 1, "incidents": 1, "incident_changes": 2,
        "incident_memory": 1, "decisions": 1, "grades": 3, "acts": 3, "journal": 9,
        "efficiency_mails": 1, "settings": 1, "switch": 1,
        "log_lines": 3 * LINES + 1,
    }  # fmt: skip
    assert told["job_records"][0]["value"]["script"] == ADA.script
    for kind in ("grades", "acts", "switch", "journal"):  # people speak of one another there, and a list has both
        del told[kind]
    assert not any(word in json.dumps(told) for word in BOB.words)


def test_an_export_into_a_folder_has_a_file_of_each_kind_and_an_index(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "ada"
    assert main(["export", "--user", ADA.name, "-o", str(folder), "--set", f"state_dir={state}"]) == 0
    assert {path.stem for path in folder.iterdir()} == {"index", *KINDS}
    assert all(path.stat().st_mode & 0o077 == 0 for path in [folder, *folder.iterdir()])
    assert json.loads((folder / "incidents.json").read_text())[0]["value"]["job_name"] == ADA.job_name
    assert "index.json says what each is" in capsys.readouterr().out


def test_a_user_of_whom_nothing_is_kept_gets_an_empty_export(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = exported(state, capsys, "nobodyknown")
    assert not any(told[kind] for kind in KINDS)


def test_an_export_of_a_user_runs_on_the_head(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--user", ADA.name, "--set", f"state_dir={tmp_path}"]) == 3
    assert "Run this on the head as the user who runs the service" in capsys.readouterr().err


def test_a_snapshot_or_a_user_is_exported(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ([], ["a.pickle", "--user", ADA.name]):
        assert main(["export", *given]) == 2
        assert "name a snapshot, or a user with --user USER, and not both" in capsys.readouterr().err
