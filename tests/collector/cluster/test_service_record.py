"""The state directory: what is written is read back, and what a crash left behind is recognised."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from pathlib import Path

import pytest

from tidegauge.cluster.ray_service import service_control
from tidegauge.cluster.service_record import (
    MAX_ENGINE_DIR_BYTES,
    NodeSpec,
    RecordError,
    ServiceRecord,
    StateFiles,
    choose_engine_dir,
    make_token,
    prepare_state_dir,
    read_address,
    read_record,
    read_spec,
    take_lock,
    write_address,
    write_record,
    write_spec,
)
from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import identity_of
from tidegauge.steady_clock import read_boot_id


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return prepare_state_dir(tmp_path / "state")


def spec_for(files: StateFiles) -> NodeSpec:
    return NodeSpec(
        state_dir=str(files.root), engine_dir=str(files.root / "engine"), token_file=str(files.token),
        head_address="127.0.0.1:6399", node_address="127.0.0.1", is_head=True, settings={"cluster": "lab"},
    )  # fmt: skip


def record_for(files: StateFiles, supervisor: ProcessId | None = None) -> ServiceRecord:
    me = identity_of(os.getpid())
    assert me is not None
    return ServiceRecord(
        supervisor=supervisor or me, boot_id=read_boot_id(), phase="running", detail="running", spec=spec_for(files),
        started_unix_s=1.5, processes=((me, "pytest"),),
    )  # fmt: skip


def test_record_and_spec_are_read_as_they_were_written(files: StateFiles) -> None:
    record = record_for(files)
    write_record(files, record)
    write_spec(files, record.spec)
    assert read_record(files) == record
    assert read_spec(files.node) == record.spec


def test_no_service_is_no_record(files: StateFiles) -> None:
    assert read_record(files) is None
    assert service_control.running_record(files) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"supervisor": 3}'])
def test_a_damaged_record_is_named_and_not_taken_for_no_service(files: StateFiles, text: str) -> None:
    files.record.write_text(text)
    with pytest.raises(RecordError, match=r"service\.json"):
        read_record(files)
    with pytest.raises(RecordError, match=r"service\.json"):
        service_control.running_record(files)


def test_a_record_of_a_process_that_ended_does_not_count(files: StateFiles) -> None:
    me = identity_of(os.getpid())
    assert me is not None
    write_record(files, record_for(files))
    assert service_control.running_record(files) is not None
    write_record(files, record_for(files, ProcessId(me.pid, me.start_ticks + 1)))
    assert service_control.running_record(files) is None


def test_a_record_from_before_a_reboot_does_not_count(files: StateFiles) -> None:
    write_record(files, dataclasses.replace(record_for(files), boot_id="another"))
    assert service_control.running_record(files) is None


def test_everything_is_closed_to_others(files: StateFiles) -> None:
    write_record(files, record_for(files))
    make_token(files)
    for path in (files.record, files.token):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(files.root.stat().st_mode) == 0o700


def test_a_state_directory_that_was_open_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    assert stat.S_IMODE(prepare_state_dir(tmp_path / "state").root.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of somebody else's")
@pytest.mark.parametrize("folder", ["state", "state/logs"])
def test_a_state_directory_of_somebody_else_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    os.chown(tmp_path / folder, 12345, 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        prepare_state_dir(tmp_path / "state")


def test_the_token_is_made_once(files: StateFiles) -> None:
    first = make_token(files).read_text()
    assert len(first) == 64
    assert make_token(files).read_text() == first


def test_the_lock_is_had_by_one_at_a_time(files: StateFiles) -> None:
    lock = take_lock(files)
    assert lock is not None
    assert take_lock(files) is None
    os.close(lock)
    again = take_lock(files)
    assert again is not None
    os.close(again)


def test_an_announced_address_is_worth_something_while_its_process_lives(files: StateFiles) -> None:
    assert read_address(files.api) is None
    write_address(files.api, "http://127.0.0.1:9495")
    assert read_address(files.api) == "http://127.0.0.1:9495"
    announced = json.loads(files.api.read_text())
    announced["process"][1] += 1
    files.api.write_text(json.dumps(announced))
    assert read_address(files.api) is None
    files.api.write_text("{")
    assert read_address(files.api) is None


def test_the_engine_gets_a_short_folder_when_the_state_directory_is_deep(tmp_path: Path) -> None:
    assert choose_engine_dir(Path("/var/lib/tidegauge")) == Path("/var/lib/tidegauge/engine")
    chosen = choose_engine_dir(Path("/home/somebody.with.a.long.name/.local/state/tidegauge"))
    try:
        assert len(str(chosen)) <= MAX_ENGINE_DIR_BYTES
        assert stat.S_IMODE(chosen.parent.stat().st_mode) == 0o700
    finally:
        chosen.parent.rmdir()


def test_ending_where_nothing_was_started_ends_nothing(files: StateFiles) -> None:
    assert service_control.end(files, print) is False


def test_ending_after_a_crash_removes_what_is_left(files: StateFiles) -> None:
    me = identity_of(os.getpid())
    assert me is not None
    crashed = dataclasses.replace(record_for(files, ProcessId(me.pid, me.start_ticks + 1)), processes=())
    write_record(files, crashed)
    (files.root / "engine" / "session").mkdir(parents=True)
    files.gcs.mkdir()
    files.token.write_text("t")
    assert service_control.end(files, print) is True
    assert sorted(path.name for path in files.root.iterdir()) == ["logs", "token"]


def test_a_service_of_another_host_that_has_the_lock_is_not_ended_as_one_that_crashed(files: StateFiles) -> None:
    write_record(files, dataclasses.replace(record_for(files), boot_id="another"))
    files.gcs.mkdir()
    lock = take_lock(files)
    assert lock is not None
    with pytest.raises(service_control.ServiceError, match="cannot be seen here uses the state directory"):
        service_control.end(files, print)
    assert files.record.exists()
    assert files.gcs.exists()
    os.close(lock)
    assert service_control.end(files, print) is True


def test_a_record_that_cannot_be_read_is_removed_only_while_nobody_runs(files: StateFiles) -> None:
    files.record.write_text("{}")
    lock = take_lock(files)
    assert lock is not None
    with pytest.raises(service_control.ServiceError, match=r"service\.json"):
        service_control.end(files, print)
    os.close(lock)
    assert service_control.end(files, print) is True
    assert not files.record.exists()
