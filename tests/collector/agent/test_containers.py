"""Which containers there are and who shares what: on a made-up proc, namespaces are files and roots are folders."""

from __future__ import annotations

import logging
import math
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tidegauge.agent.container_run_dirs import discovery as containers
from tidegauge.agent.container_run_dirs.discovery import (
    LOOK_EVERY_S,
    MAX_CONTAINERS,
    MAX_CONTAINERS_PER_TENANT,
    QUIET_AFTER_S,
    WALK_EVERY_S,
    Containers,
)
from tidegauge.agent.container_run_dirs.run_dirs import Container
from tidegauge.agent.opening.local import LocalOpener
from tidegauge.agent.opening.port import EnteredNamespace
from tidegauge.agent.opening.safe_files import mount_of, opened
from tidegauge.agent.run_dirs.folders import HostRunDir, RunDir
from tidegauge.agent.run_dirs.user_folders import UserFolders
from tidegauge.agent.source_health import SkipCounts
from tidegauge.core.ids import ProcessId


class Machine:
    """Processes in mount namespaces; ``/run/tg`` is where rings lie in each of them."""

    def __init__(self, scratch: Path) -> None:
        self.proc = scratch / "proc"
        self.scratch = scratch
        self.host = scratch / "host/run/tg"
        self.host.mkdir(parents=True)
        self.candidates: list[int] | None = None
        self.slipping = False
        self.skips = SkipCounts(logging.getLogger("test"))
        self.now_s = 0.0
        self.mounts = set()
        for folder in (scratch, *scratch.parents):
            with opened(str(folder), os.O_RDONLY) as fd:
                self.mounts.add(mount_of(fd))
        self.namespace("ours")
        (self.proc / "self/ns").mkdir(parents=True)
        os.link(scratch / "ns-ours", self.proc / "self/ns/mnt")
        path = Path("/run/tg")
        self.containers = Containers([path], candidates=self._name_candidates, proc=self.proc, max_s_for_new=math.inf)

    def _name_candidates(self) -> list[int] | None:
        if self.slipping:
            raise ZeroDivisionError("a slip of ours")
        return self.candidates

    def namespace(self, name: str) -> None:
        (self.scratch / f"ns-{name}").touch()

    def root(self, name: str) -> Path:
        path = self.scratch / f"root-{name}"
        (path / "run/tg").mkdir(parents=True, exist_ok=True)
        return path

    def start(
        self,
        pid: int,
        namespace: str,
        *,
        root: Path | None = None,
        uid: int = 1000,
        file_system: str = "tmpfs",
        pod: str | None = None,
        name: str = "python",
    ) -> None:
        self.namespace(namespace)
        folder = self.proc / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "fd").mkdir()
        os.link(self.scratch / f"ns-{namespace}", folder / "ns/mnt")
        stat = " ".join(["S", *["0"] * 18, str(pid + 7000), *["0"] * 30])
        (folder / "stat").write_text(f"{pid} ({name}) {stat}\n")
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        with (folder / "mountinfo").open("w") as mountinfo:
            for number in self.mounts:
                mountinfo.write(f"{number} 1 0:1 / / rw,relatime - {file_system} none rw\n")
        (folder / "cgroup").write_text("0::/\n" if pod is None else f"0::/kubepods/pod{pod}/{'7f3a' * 16}\n")
        (folder / "root").symlink_to(root or self.root(namespace))

    def end(self, pid: int) -> None:
        (self.proc / str(pid)).rename(self.scratch / f"ended-{pid}")

    def look(self, after_s: float = WALK_EVERY_S, gpu_pids: list[int] | None = None) -> tuple[RunDir, ...]:
        self.now_s += after_s
        self.containers.look(self.now_s, gpu_pids or [], self.skips)
        return self.containers.run_dirs

    def number(self, name: str) -> int:
        return (self.scratch / f"ns-{name}").stat().st_ino


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def inode(run_dir: RunDir) -> int:
    with run_dir.opened() as there:
        return there.identity[1]


def test_processes_of_our_own_namespace_are_no_container(machine: Machine) -> None:
    machine.start(1, "ours")
    assert machine.look() == ()


def test_a_container_is_looked_into_by_one_of_its_processes(machine: Machine) -> None:
    machine.start(1, "ours")
    machine.start(10, "a")
    machine.start(11, "a")
    (machine.root("a") / "run/tg/1000").mkdir()
    [run_dir] = machine.look()
    assert list(run_dir.mount_namespaces or ()) == [machine.number("a")]
    with run_dir.opened() as fd:
        assert [folder.uid for folder, _ in UserFolders(run_dir).look(fd, 0.0).folders] == [1000]
    assert str(run_dir).endswith("/run/tg")


def test_a_container_without_a_run_directory_is_passed_over_in_silence(machine: Machine) -> None:
    machine.start(10, "a")
    (machine.root("a") / "run/tg").rmdir()
    assert machine.look() == ()
    assert machine.skips.snapshot() == {}
    machine.root("a")
    assert len(machine.look(after_s=LOOK_EVERY_S)) == 1, "made later"


def test_another_process_is_the_way_in_when_the_first_has_ended(machine: Machine) -> None:
    machine.start(10, "a")
    machine.start(11, "a")
    [run_dir] = machine.look()
    there = inode(run_dir)
    machine.end(10)
    assert machine.look(after_s=LOOK_EVERY_S) == (run_dir,), "the same value: what is known of its rings stays"
    assert inode(run_dir) == there


def test_a_pid_that_was_used_again_leads_nowhere(machine: Machine) -> None:
    machine.start(10, "a")
    [run_dir] = machine.look()
    stat = machine.proc / "10/stat"
    stat.write_text(stat.read_text().replace("7010", "9999"))
    with pytest.raises(FileNotFoundError):
        inode(run_dir)


def test_a_process_that_went_elsewhere_leads_nowhere(machine: Machine) -> None:
    machine.start(10, "a")
    [run_dir] = machine.look()
    (machine.proc / "10/ns/mnt").unlink()
    os.link(machine.scratch / "ns-ours", machine.proc / "10/ns/mnt")
    with pytest.raises(FileNotFoundError):
        inode(run_dir)


def test_a_container_is_forgotten_with_its_last_process(machine: Machine) -> None:
    machine.start(10, "a")
    [run_dir] = machine.look()
    machine.end(10)
    assert machine.look() == ()
    with pytest.raises(FileNotFoundError):
        inode(run_dir)


def test_containers_that_share_a_run_directory_have_one_together(machine: Machine) -> None:
    pod = machine.root("pod")
    machine.start(10, "a", root=pod)
    machine.start(20, "b", root=pod)
    [run_dir] = machine.look()
    assert set(run_dir.mount_namespaces or ()) == {machine.number("a"), machine.number("b")}
    machine.end(10)
    assert machine.look() == (run_dir,)
    assert list(run_dir.mount_namespaces or ()) == [machine.number("b")]


def test_the_nodes_own_run_directory_is_none_of_a_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    here = Containers([machine.host], candidates=lambda: None, proc=machine.proc)
    machine.start(10, "a", root=Path("/"))
    here.look(0.0, [], machine.skips)
    assert here.run_dirs == ()
    assert machine.skips.snapshot() == {}


def test_container_search_scans_only_named_candidates(machine: Machine) -> None:
    machine.start(10, "a")
    machine.start(20, "b")
    machine.candidates = [20]
    [run_dir] = machine.look()
    assert list(run_dir.mount_namespaces or ()) == [machine.number("b")]
    machine.candidates = []
    assert machine.look(after_s=LOOK_EVERY_S) == ()


def test_a_process_on_a_gpu_is_found_between_two_walks(machine: Machine) -> None:
    assert machine.look() == ()
    machine.start(10, "a")
    machine.start(20, "b")
    [run_dir] = machine.look(after_s=LOOK_EVERY_S, gpu_pids=[10, 999])
    assert list(run_dir.mount_namespaces or ()) == [machine.number("a")]
    assert len(machine.look(after_s=WALK_EVERY_S)) == 2


def test_a_container_in_which_nothing_is_found_is_entered_at_walks_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    enter = LocalOpener.entered

    def entering(
        opener: LocalOpener, process: ProcessId, mount_namespace: int
    ) -> AbstractContextManager[EnteredNamespace]:
        entered.append(mount_namespace)
        return enter(opener, process, mount_namespace)

    monkeypatch.setattr(LocalOpener, "entered", entering)
    machine.start(1, "ours")
    machine.start(10, "rank")
    (machine.root("rank") / "run/tg/1000").mkdir()
    machine.start(20, "sidecar", root=machine.scratch / "nothing")
    machine.start(30, "imports", root=machine.scratch / "nothing")
    machine.start(40, "shares", root=machine.host.parents[1])
    machine.containers._host = [HostRunDir(machine.host)]
    for _ in range(int(QUIET_AFTER_S + WALK_EVERY_S)):
        machine.look(LOOK_EVERY_S, gpu_pids=[30])
    entered.clear()
    for _ in range(int(3 * WALK_EVERY_S)):
        machine.look(LOOK_EVERY_S, gpu_pids=[30])
    counts = [entered.count(machine.number(name)) for name in ("rank", "sidecar", "imports", "shares")]
    assert counts == [3 * WALK_EVERY_S, 3, 3 * WALK_EVERY_S, 3]
    (machine.scratch / "nothing/run/tg/1000").mkdir(parents=True)
    assert len(machine.look(WALK_EVERY_S)) == 2, "as one that is new: at the next walk at the latest"
    entered.clear()
    machine.look(LOOK_EVERY_S)
    assert entered.count(machine.number("sidecar")) == 1


def test_container_search_limits_containers_per_tenant(machine: Machine) -> None:
    many = MAX_CONTAINERS_PER_TENANT + 5
    for number in range(many):
        machine.start(100 + number, f"many-{number}")
    machine.start(5000, "other", uid=2000)
    run_dirs = machine.look()
    assert len(run_dirs) == MAX_CONTAINERS_PER_TENANT + 1
    assert machine.number("other") in {one for run_dir in run_dirs for one in run_dir.mount_namespaces or ()}


def test_a_process_does_not_name_its_tenant(machine: Machine) -> None:
    for number in range(MAX_CONTAINERS_PER_TENANT + 5):
        machine.start(100 + number, f"many-{number}", name=f"\vUid:\t0\t{500 + number}")
    machine.start(5000, "other", uid=2000, name="\vUid:\tx\ty")
    assert len(machine.look()) == MAX_CONTAINERS_PER_TENANT + 1


def test_a_look_that_fails_is_made_good_by_the_next(machine: Machine) -> None:
    machine.start(10, "a")
    machine.slipping = True
    with pytest.raises(ZeroDivisionError):
        machine.look()
    with pytest.raises(ZeroDivisionError):
        machine.look(after_s=0.1)
    machine.slipping = False
    assert len(machine.look(after_s=0.1)) == 1, "all processes are looked through, as was due"


def test_pods_of_one_uid_do_not_take_each_others_places(machine: Machine) -> None:
    """All of a cluster's containers may run as the same uid."""
    for number in range(MAX_CONTAINERS_PER_TENANT + 5):
        machine.start(100 + number, f"many-{number}", uid=0, pod="a" * 32)
    machine.start(5000, "other", uid=0, pod="b" * 32)
    run_dirs = machine.look()
    assert len(run_dirs) == MAX_CONTAINERS_PER_TENANT + 1
    assert machine.number("other") in {one for run_dir in run_dirs for one in run_dir.mount_namespaces or ()}


def test_namespaces_beyond_the_time_of_a_look_have_theirs_at_the_next(machine: Machine) -> None:
    """10,000 of one user took seconds of a look, every ten seconds."""
    for number in range(20):
        machine.start(100 + number, f"one-{number}", pod=f"{number:032x}")
    machine.containers._max_s_for_new = 0.0
    assert machine.look() == ()
    machine.containers._max_s_for_new = math.inf
    assert len(machine.look(after_s=LOOK_EVERY_S)) == 20, "without another look at all processes"


def test_a_container_that_waited_and_is_on_a_gpu_by_now_is_made_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def make(*what: object) -> Container:
        made.append(Container(*what))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(containers, "Container", make)
    machine.start(10, "a")
    machine.containers._max_s_for_new = 0.0
    assert machine.look() == ()
    machine.containers._max_s_for_new = math.inf
    assert len(machine.look(after_s=LOOK_EVERY_S, gpu_pids=[10])) == 1
    assert len(made) == 1


def test_more_processes_than_are_looked_through_at_a_time_have_turns(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container beyond the first 65,536 was never looked into, and one that was known was forgotten."""
    monkeypatch.setattr(containers, "MAX_PROCESSES", 10)
    machine.start(5, "first")
    for pid in range(100, 125):
        machine.start(pid, "ours")
    machine.start(5000, "late")
    for _ in range(3):
        last = machine.look()
    assert sorted(inode(one) for one in last) == sorted(
        (machine.root(name) / "run/tg").stat().st_ino for name in ("first", "late")
    )
    for _ in range(6):
        assert len(machine.look()) == 2, "they stay while their processes live"
    machine.end(5)
    for _ in range(3):
        last = machine.look()
    assert [one.mount_namespaces for one in last] == [[machine.number("late")]]


def test_a_process_on_a_gpu_is_looked_for_when_all_places_are_taken(machine: Machine) -> None:
    for number in range(MAX_CONTAINERS + 5):
        machine.start(100 + number, f"sidecar-{number}", uid=0, pod=f"{number:032x}")
    assert len(machine.look()) == MAX_CONTAINERS
    machine.start(5000, "trains", uid=0, pod="b" * 32)
    assert len(machine.look(after_s=LOOK_EVERY_S, gpu_pids=[5000])) == MAX_CONTAINERS + 1


@pytest.mark.parametrize("file_system", ["fuse", "fuse.squashfuse", "nfs4", "autofs", "overlay"])
def test_container_search_skips_file_systems_that_may_hang(machine: Machine, file_system: str) -> None:
    machine.start(10, "a", file_system=file_system)
    for _ in range(5):
        assert machine.look() == ()
    assert machine.skips.snapshot() == {"file_system": 1}


def test_a_link_on_the_way_is_refused_once(machine: Machine) -> None:
    machine.start(10, "a")
    root = machine.root("a")
    (root / "run").rename(machine.scratch / "elsewhere")
    (root / "run").symlink_to(machine.scratch / "elsewhere")
    for _ in range(5):
        machine.look()
    assert machine.skips.snapshot() == {"symlink": 1}
