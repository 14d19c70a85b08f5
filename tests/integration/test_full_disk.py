"""A service whose state lies on a full disk: what it can do it does, it says what it cannot, and it needs no hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from integration.service import Service, eventually
from integration.small_disks import fill, make_room, small_disk
from scheduler_values import decision
from store_contract import opened
from tidegauge.cli.errors import BAD_NEWS, ENVIRONMENT
from tidegauge.cli.main import main
from tidegauge.cluster.service_record import (
    NodeSpec,
    ServiceRecord,
    StateFiles,
    prepare_state_dir,
    read_record,
    write_record,
)
from tidegauge.cluster.store import Store, StoreError, open_store, sqlite_url
from tidegauge.osproc.processes import identity_of
from tidegauge.steady_clock import read_boot_id

DISK_BYTES = 192 << 20
BACK_WITHIN_S = 400.0
"""The engine alone takes more than a minute to start on a machine with other things to do, and the first start is one
that a full disk ends."""


@pytest.fixture
def service() -> Iterator[Service]:
    """On a disk of its own."""
    service = Service()
    try:
        with small_disk(service.files.root, size_bytes=DISK_BYTES):
            service.files.root.chmod(0o700)
            service.up()
            try:
                yield service
            finally:
                make_room(service.files.root)
                service.call("down")
    finally:
        service.close()


def is_whole(service: Service) -> bool:
    return service.get("/api/v1/status")["healthy"] is True and service.get("/api/v1/policy")["store_problem"] is None


@pytest.mark.timeout(1800)
def test_service_recovers_by_itself_from_a_crash_on_a_full_disk(service: Service) -> None:
    """Those that the engine starts again at once start on the full disk; the engine itself once there is room."""
    disk = service.files.root
    fill(disk)
    (coordinator,), (agent,) = service.coordinators(), service.agents()
    for pid in (coordinator, agent):
        os.kill(pid, signal.SIGKILL)
    eventually(
        lambda: service.coordinators() not in ([], [coordinator]) and service.agents() not in ([], [agent]),
        "coordinator and agent are started again on a full disk", within_s=BACK_WITHIN_S,
    )  # fmt: skip
    make_room(disk)
    eventually(lambda: is_whole(service), "the service is whole again", within_s=BACK_WITHIN_S)

    fill(disk)
    os.kill(service.pid_of("gcs_server"), signal.SIGKILL)
    eventually(lambda: not service.agents(), "the engine has ended", within_s=BACK_WITHIN_S)
    assert service.record.alive, "the supervisor has not outlived a full disk"
    make_room(disk)
    eventually(lambda: is_whole(service), "the engine is whole again", within_s=BACK_WITHIN_S)


# --- the database


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", size_bytes=4 << 20) as folder:
        yield folder


def written(store: Store) -> tuple[list[int], list[str]]:
    incidents = [one.number for one in store.incidents.incidents()]
    return incidents, [one.decision.decision_id for one in store.audit.each(since_s=0.0)]


def test_store_on_a_full_disk_raises_and_keeps_earlier_records(disk: Path) -> None:
    store = open_store(sqlite_url(disk))
    store.incidents.save([opened(1)])
    store.audit.write_ahead([decision(decision_id="before")])
    fill(disk)
    with pytest.raises(StoreError):
        store.audit.write_ahead([decision(decision_id="never carried out")])
    with pytest.raises(StoreError):
        store.incidents.save([opened(2)])
    make_room(disk)
    assert written(store) == ([1], ["before"])
    store.audit.write_ahead([decision(decision_id="after")])
    assert written(store) == ([1], ["before", "after"])


def fill_with_decisions(store: Store, acknowledged: list[str]) -> None:
    for number in range(10_000):
        store.audit.write_ahead([decision(decision_id=f"d{number}", reason="x" * 8000, decided_s=float(number))])
        acknowledged.append(f"d{number}")


def test_a_disk_that_fills_up_amid_writing_loses_nothing_that_was_acknowledged(disk: Path) -> None:
    store = open_store(sqlite_url(disk))
    reserve = disk / "reserve"
    reserve.write_bytes(b"\0" * (3 << 20))
    acknowledged: list[str] = []
    with pytest.raises(StoreError, match="free some space on its disk"):
        fill_with_decisions(store, acknowledged)
    assert len(acknowledged) > 10
    reserve.unlink()
    assert written(store)[1] == acknowledged
    assert written(open_store(sqlite_url(disk)))[1] == acknowledged


# --- what commands say


@pytest.fixture(params=["full", "read-only"])
def closed_state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[StateFiles, str]]:
    """A state directory on a disk to which nothing can be written, and the kernel's words for that. ``service.json``
    there says that a node without the coordinator runs."""
    with small_disk(tmp_path / "disk", size_bytes=1 << 20) as disk:
        files = prepare_state_dir(disk / "state")
        write_running_node(files)
        if request.param == "full":
            fill(disk)
            yield files, "No space left on device"
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            yield files, "Read-only file system"


def write_running_node(files: StateFiles) -> None:
    spec = NodeSpec(
        state_dir=str(files.root), engine_dir=str(files.root / "engine"), token_file=str(files.token),
        head_address="10.0.0.1:6399", node_address="10.0.0.2", is_head=False, settings={},
    )  # fmt: skip
    me = identity_of(os.getpid())
    assert me is not None
    write_record(files, ServiceRecord(me, read_boot_id(), "running", "running", spec, 1.0))


def said(capsys: pytest.CaptureFixture[str]) -> str:
    told = capsys.readouterr()
    return " ".join((told.out + told.err).split())


def test_status_says_that_the_state_cannot_be_written(
    closed_state: tuple[StateFiles, str], capsys: pytest.CaptureFixture[str]
) -> None:
    files, why = closed_state
    assert main(["status", "--set", f"state_dir={files.root}"]) == BAD_NEWS
    told = said(capsys)
    assert f"state {files.root} cannot be written: {why}. Parts of the service may run that are not shown here" in told
    assert "metrics not known: its address cannot be written" in told
    main(["status", "--json", "--set", f"state_dir={files.root}"])
    assert why in json.loads(capsys.readouterr().out)["local"]["state_problem"]


def test_commands_name_the_file_that_cannot_be_written_and_what_to_do(
    closed_state: tuple[StateFiles, str], capsys: pytest.CaptureFixture[str]
) -> None:
    files, why = closed_state
    other = files.root.parent / "other"
    assert main(["up", "--set", f"state_dir={other}", "--set", "engine_port=0"]) == ENVIRONMENT
    told = said(capsys)
    assert why in told
    assert f"{other}/token: {why}; free space there, then run this again" in told or "--set state_dir=DIR" in told
    assert main(["grafana", "export", str(files.root.parent)]) == ENVIRONMENT
    assert f"cannot write {files.root.parent}/dashboards" in (told := said(capsys))
    assert f"{why}; free space there" in told or f"{why}; make it writable" in told


def test_down_on_a_read_only_disk_says_what_it_cannot_remove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", size_bytes=1 << 20) as disk:
        files = prepare_state_dir(disk / "state")
        write_running_node(files)
        record = read_record(files)
        assert record is not None
        write_record(files, replace(record, boot_id="another"))
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert main(["down", "--set", f"state_dir={files.root}"]) == ENVIRONMENT
        assert f"{files.root}/api.json: Read-only file system; make it writable" in said(capsys)
