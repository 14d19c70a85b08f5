"""Files that earlier services left in their state directory, and those of a newer one, after a way back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import upgrade_fixtures as fixtures
from tidegauge.cluster.incident_loops.action_switch import ActionSwitch
from tidegauge.cluster.service_record import RecordError, StateFiles, read_address, read_record, read_spec
from tidegauge.settings import Settings
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from upgrade_fixtures import RELEASES


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def files(release: str, tmp_path: Path) -> StateFiles:
    shutil.copytree(fixtures.FOLDER / release / "state", tmp_path, dirs_exist_ok=True)
    return StateFiles(tmp_path)


def having(name: str) -> pytest.MarkDecorator:
    """For the releases that had this file."""
    found = [release for release in RELEASES if fixtures.state_file(release, name).exists()]
    assert found, f"no release has {name}"
    return pytest.mark.parametrize("release", found, indirect=True)


def test_the_service_that_ran_is_known(files: StateFiles) -> None:
    record, raw = read_record(files), json.loads(files.record.read_text())
    assert record is not None
    assert list(record.supervisor) == raw["supervisor"]
    assert [name for _, name in record.processes] == [name for _, name in raw["processes"]]
    assert not record.alive, "boot id and start time say so, whatever has its pid now"


def test_upgrade_reads_old_service_settings_unchanged(files: StateFiles) -> None:
    spec = read_spec(files.node)
    raw = json.loads(files.node.read_text())["settings"]
    settings = Settings(**spec.settings).model_dump(mode="json")
    assert {name: settings[name] for name in raw} == raw, "no setting was taken away or means something else"


def test_addresses_of_processes_that_ended_are_none(files: StateFiles) -> None:
    assert files.api.exists()
    assert files.agent.exists()
    assert (read_address(files.api), read_address(files.agent)) == (None, None)


@having("actions.json")
def test_upgrade_keeps_actions_paused(files: StateFiles) -> None:
    paused = ActionSwitch(files.actions).read(now_s=0.0).paused
    assert paused is not None
    assert "an upgrade" in paused


@having("notified.jsonl")
def test_upgrade_keeps_the_old_notifiers_delivery_journal(files: StateFiles) -> None:
    path = files.root / "notified.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    journal = DeliveryJournal(path, wall_s=lambda: 0.0)
    try:
        assert journal.problem is None
        assert sum(len(journal.keys(sink)) for sink in {_sink(line) for line in lines}) > 0
        assert not path.with_name(f"{path.name}.damaged").exists()
    finally:
        journal.close()


def _sink(line: object) -> str:
    assert isinstance(line, (dict, list))
    return str(line["sink"] if isinstance(line, dict) else line[0])


# A service of tomorrow, and a way back.


@pytest.mark.parametrize("release", RELEASES[-1:], indirect=True)
def test_keys_that_a_newer_version_added_do_not_keep_this_one_from_ending_it(files: StateFiles) -> None:
    record, spec = json.loads(files.record.read_text()), json.loads(files.node.read_text())
    files.record.write_text(json.dumps({**record, "mood": "fine", "spec": {**spec, "flavour": "mint"}}))
    files.node.write_text(json.dumps({**spec, "flavour": "mint"}))
    found = read_record(files)
    assert found is not None
    assert found.spec == read_spec(files.node)


@pytest.mark.parametrize("release", RELEASES[-1:], indirect=True)
@pytest.mark.parametrize("damaged", ['{"supervisor": [1]}', '{"supervisor": 7, "spec": 7}', "[]", "{"])
def test_upgrade_names_a_damaged_record_file(files: StateFiles, damaged: str) -> None:
    files.record.write_text(damaged)
    with pytest.raises(RecordError, match=r"service\.json"):
        read_record(files)
