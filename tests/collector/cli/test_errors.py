from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tidegauge.cli.errors import CommandError, need
from tidegauge.cli.main import main
from tidegauge.cluster.service_record import NodeSpec, ServiceRecord, StateFiles, write_record
from tidegauge.core.ids import ProcessId


def test_missing_extra_names_the_exact_installation() -> None:
    with pytest.raises(CommandError, match=r"'no_such_package'.*\n +pip install 'tidegauge\[agent\]'"):
        need("no_such_package", extra="agent", what="the service")


def test_python_for_which_the_extras_are_empty_is_told_to_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    with pytest.raises(CommandError, match=r"needs Python 3\.10 or later, this is 3\.9"):
        need("no_such_package", extra="agent", what="the service")


@pytest.mark.parametrize("command", ["status", "jobs", "down"])
@pytest.mark.parametrize("obstacle", ["state directory is a file", "record is damaged"])
def test_unreadable_record_is_named_not_taken_for_no_service(
    command: str, obstacle: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state_dir = tmp_path / "state"
    if obstacle == "record is damaged":
        state_dir.mkdir()
        (state_dir / "service.json").write_text("{")
    else:
        state_dir.write_text("")
    code = main([command, "--set", f"state_dir={state_dir}"])
    if (command, obstacle) == ("down", "record is damaged"):
        assert code == 0
        assert not (state_dir / "service.json").exists()
    else:
        assert code == 3
        assert "service.json" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "jobs"])
def test_service_that_crashed_is_told_from_one_that_never_was(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--set", f"state_dir={tmp_path}"]) == 3
    assert "no service of yours" in capsys.readouterr().err
    spec = NodeSpec("s", "e", "t", "127.0.0.1:6399", "127.0.0.1", True, {})
    ended = ServiceRecord(ProcessId(1, 1), "an earlier boot", "running", "", spec, 1.0)
    write_record(StateFiles(tmp_path), ended)
    assert main([command, "--set", f"state_dir={tmp_path}"]) == 3
    assert "tidegauge down" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "jobs"])
def test_a_service_that_never_started_is_not_told_as_a_crash(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = NodeSpec("s", "e", "t", "127.0.0.1:6399", "127.0.0.1", True, {})
    failed = ServiceRecord(ProcessId(1, 1), "an earlier boot", "failed", "Ray did not start: port in use", spec, 1.0)
    write_record(StateFiles(tmp_path), failed)
    assert main([command, "--set", f"state_dir={tmp_path}"]) == 3
    said = capsys.readouterr().err
    assert "the last `tidegauge up` failed: Ray did not start: port in use; logs: " in said
    assert "crash" not in said


def test_an_api_that_is_no_url_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--api", "localhost"]) == 2
    assert "'localhost' is not an API address; it looks like http://127.0.0.1:9495" in capsys.readouterr().err
