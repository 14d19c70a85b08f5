"""Which records have a place among the launches of a node, however many names anybody makes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fake_node import FakeProcs
from fake_run_dirs import FakeContainerRunDir
from tidegauge.agent.container_run_dirs.run_dirs import Container, ContainerPoll, ContainerRunDir
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.port import OpenFolder
from tidegauge.agent.ports import ProcessFacts
from tidegauge.agent.rings import launch_names
from tidegauge.agent.rings.launches import LOOK_EVERY_S, Launches
from tidegauge.agent.run_dirs.folders import HostRunDir, RunDir, UserFolder, opened_folder
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import LaunchRecord, LaunchState, encode_launch_record
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.run_dirs import launch_name

ME = os.geteuid()


class Node:
    """Containers with launches."""

    def __init__(self, tmp_path: Path) -> None:
        self.tmp_path = tmp_path
        self.procs = FakeProcs()
        self.run_dirs: list[RunDir] = []
        self.launches = Launches(self._run_dirs, self.procs, linger_s=120.0)
        self.now_s = 0.0

    def _run_dirs(self) -> Sequence[RunDir]:
        return self.run_dirs

    def container(self, name: str, tenant: int) -> FakeContainerRunDir:
        (self.tmp_path / name).mkdir()
        run_dir = FakeContainerRunDir(self.tmp_path / name, Tenant(tenant))
        self.run_dirs.append(run_dir)
        return run_dir

    def squat(self, run_dir: FakeContainerRunDir, folders: int, names: int) -> None:
        """Empty records, with later start times than anybody's."""
        for uid in range(5000, 5000 + folders):
            (run_dir.path / str(uid)).mkdir()
            for number in range(1, names + 1):
                (run_dir.path / str(uid) / f"{number}-{10**9 + number}.job").touch()

    def keep(self, run_dir: FakeContainerRunDir, pid: int, *, folder: int = ME, exempt: bool = False) -> ProcessId:
        """A keeper that lives and has written its record."""
        process = ProcessId(pid, 10 * pid)
        self.procs.facts[process] = ProcessFacts(process, ME, None)
        record = LaunchRecord(process, f"job-{pid}", None, 0, LaunchState.RUNNING, True, exempt, None, 1.7e9)
        (run_dir.path / str(folder)).mkdir(exist_ok=True)
        (run_dir.path / str(folder) / launch_name(process)).write_bytes(encode_launch_record(record))
        return process

    def look(self) -> list[ProcessId]:
        self.now_s += LOOK_EVERY_S
        self.launches.look(self.now_s)
        self.launches.hold()
        return [launch.process for launch in self.launches.summaries]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_launch_names_of_one_tenant_do_not_displace_anothers_launch(node: Node) -> None:
    """Or its exemption would be lost, and actions done to a job whose owner excluded it."""
    node.squat(node.container("attacker", tenant=6666), folders=8, names=64)
    node.look()
    victim = node.keep(node.container("victim", tenant=1000), 700, exempt=True)
    assert node.look() == [victim]
    (launch,) = node.launches.summaries
    assert launch.exempt


def test_several_containers_of_one_tenant_are_one_tenant(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_names, "MAX_LAUNCHES", 8)
    for number in range(20):
        node.squat(node.container(f"attacker-{number}", tenant=6666), folders=2, names=4)
    victim = node.container("victim", tenant=1000)
    keepers = [node.keep(victim, pid) for pid in (700, 701, 702, 703)]
    assert node.look() == keepers


def test_folders_of_one_tenant_have_their_turn(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_names, "MAX_LAUNCHES", 8)
    shared = node.container("shared", tenant=7777)
    node.squat(shared, folders=3, names=64)
    keepers = [node.keep(shared, pid, folder=1) for pid in (700, 701)]
    assert node.look() == keepers


def test_launch_names_keep_a_living_launch_during_a_flood(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_names, "MAX_LAUNCHES", 4)
    victim = node.container("victim", tenant=1000)
    keepers = [node.keep(victim, pid) for pid in (700, 701, 702)]
    assert node.look() == keepers
    for tenant in range(2000, 2010):
        node.squat(node.container(f"attacker-{tenant}", tenant), folders=2, names=4)
    node.squat(victim, folders=4, names=70)
    for _ in range(20):
        assert node.look() == keepers


def test_a_living_launch_keeps_its_place_among_its_owners_newer_names(node: Node) -> None:
    victim = node.container("victim", tenant=1000)
    keeper = node.keep(victim, 700, folder=5000)
    assert node.look() == [keeper]
    (victim.path / "5000").rename(victim.path / "away")
    node.squat(victim, folders=1, names=70)
    (victim.path / "away" / launch_name(keeper)).rename(victim.path / "5000" / launch_name(keeper))
    for _ in range(3):
        assert node.look() == [keeper]


def test_living_launches_of_one_tenant_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_names, "MAX_LAUNCHES", 8)
    monkeypatch.setattr(launch_names, "MAX_LAUNCHES_PER_TENANT", 6)
    attacker = node.container("attacker", tenant=6666)
    for pid in range(1, 20):
        node.keep(attacker, pid, folder=5000 + pid % 4)
    assert len(node.look()) == 6
    victim = node.keep(node.container("victim", tenant=1000), 700)
    for _ in range(3):
        assert victim in node.look()


def test_among_more_tenants_than_places_everybody_has_a_turn(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_names, "MAX_LAUNCHES", 2)
    for tenant in range(2000, 2004):
        node.squat(node.container(f"attacker-{tenant}", tenant), folders=1, names=2)
    victim = node.keep(node.container("victim", tenant=1000), 700)
    assert any(node.look() == [victim] for _ in range(500))
    assert node.look() == [victim]


def test_a_tenant_of_a_folder(tmp_path: Path) -> None:
    containers = (Container(7, Tenant(None, pod_uid="pod-a"), ()),)
    inside = ContainerRunDir(tmp_path, (1, 2), LOCAL, ContainerPoll(), containers)
    assert UserFolder(inside, 1000).tenant == Tenant(None, pod_uid="pod-a")
    assert UserFolder(HostRunDir(tmp_path), 1000).tenant == Tenant(1000)


def test_a_folder_is_listed_again_only_when_it_has_changed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[UserFolder] = []

    def opened(folder: UserFolder) -> AbstractContextManager[OpenFolder]:
        listed.append(folder)
        return opened_folder(folder)

    monkeypatch.setattr(launch_names, "opened_folder", opened)
    run_dir = node.container("one", tenant=1000)
    keeper = node.keep(run_dir, 700)
    for _ in range(10):
        assert node.look() == [keeper]
    assert len(listed) == 2, "once more, as the clock of the file system is coarse"
    other = node.keep(run_dir, 701)
    assert node.look() == [keeper, other]
    node.look()
    assert len(listed) == 4


def test_a_record_made_within_a_tick_after_the_listing_is_found(node: Node) -> None:
    run_dir = node.container("one", tenant=1000)
    keeper = node.keep(run_dir, 700)
    before = os.stat(run_dir.path / str(ME)).st_mtime_ns
    assert node.look() == [keeper]
    other = node.keep(run_dir, 701)
    os.utime(run_dir.path / str(ME), ns=(before, before))
    assert node.look() == [keeper, other]


def test_a_launch_stays_known_while_its_folder_cannot_be_listed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever uses up the agent's descriptors must not end another's exemption."""
    run_dir = node.container("victim", tenant=1000)
    first = node.keep(run_dir, 700, exempt=True)
    assert node.look() == [first]
    second = node.keep(run_dir, 800)

    def out_of_descriptors(folder: UserFolder) -> AbstractContextManager[OpenFolder]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as full:
        full.setattr(launch_names, "opened_folder", out_of_descriptors)
        assert node.look() == [first]
    assert node.look() == [first, second]
