from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_node import FakeClock, FakeRank
from fake_run_dirs import FakeContainerRunDir
from tidegauge.agent.rings.discovery import (
    BLANK_GRACE_S,
    MAX_OPENS_PER_POLL,
    MAX_RINGS_PER_FOLDER,
    RECHECK_S,
    RingFile,
    RingFinder,
)
from tidegauge.agent.run_dirs.folders import HostRunDir
from tidegauge.agent.run_dirs.user_folders import GIVES_WAY_S
from tidegauge.agent.source_health import SkipCounts
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import oom_snapshot_name, ring_name, socket_name

ME = os.getuid()
as_root = pytest.mark.skipif(ME != 0, reason="only root may give files away")


class Search:
    """A finder over one run directory, with the rings it opened."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.skips = SkipCounts(logging.getLogger("test"))
        self.finder = RingFinder(lambda: [HostRunDir(run_dir)], self.skips)
        self.now_s = 0.0
        self.rings: list[RingFile] = []

    def look(self, after_s: float = 0.5) -> list[RingFile]:
        self.now_s += after_s
        found = self.finder.new_rings(self.now_s)
        self.rings += found
        return found

    def rank(self, pid: int = 100) -> FakeRank:
        return FakeRank(self.run_dir, FakeClock(), process=ProcessId(pid, 5))

    @property
    def skipped(self) -> dict[str, int]:
        return dict(self.skips.snapshot())


@pytest.fixture
def search(short_path: Path) -> Iterator[Search]:
    run_dir = short_path / "run"
    (run_dir / str(ME)).mkdir(parents=True)
    searching = Search(run_dir)
    yield searching
    for ring in searching.rings:
        os.close(ring.fd)


def mine(search: Search, name: str = "100-5.ring") -> Path:
    return search.run_dir / str(ME) / name


def test_finds_a_ring_once_and_later_ones_when_they_come(search: Search) -> None:
    search.rank(100)
    [ring] = search.look()
    assert (ring.process, ring.uid, str(ring.place)) == (ProcessId(100, 5), ME, str(mine(search)))
    assert search.look() == []
    search.rank(101)
    assert [ring.process.pid for ring in search.look()] == [101]
    assert search.skipped == {}


def test_a_missing_run_directory_is_no_failure_and_is_found_later(tmp_path: Path) -> None:
    search = Search(tmp_path / "run")
    assert search.look() == []
    search.rank()
    [ring] = search.look()
    os.close(ring.fd)
    assert search.skipped == {}


def test_a_new_file_under_a_known_name_is_a_new_ring(search: Search) -> None:
    search.rank()
    [before] = search.look()
    replacement = mine(search, "new")
    replacement.write_bytes(mine(search).read_bytes())
    replacement.rename(mine(search))
    [after] = search.look()
    assert after.place == before.place
    assert not after.signature.same_file(before.signature)


def test_other_files_are_nobodys_business(search: Search) -> None:
    mine(search, "100-5.sock").touch()
    mine(search, "notes.txt").touch()
    (search.run_dir / "lost+found").mkdir()
    (search.run_dir / "007").mkdir()
    assert search.look() == []
    assert search.skipped == {}


@pytest.mark.parametrize("name", ["x.ring", "1-2-3.ring", "-5.ring", f"{'9' * 50}-1.ring"])
def test_a_ring_of_another_name_is_refused(search: Search, name: str) -> None:
    mine(search, name).touch()
    assert search.look() == []
    assert search.skipped == {"name": 1}


def test_a_symlinked_ring_is_refused_once(search: Search, tmp_path: Path) -> None:
    rank = FakeRank(tmp_path / "elsewhere", FakeClock())
    mine(search).symlink_to(rank.path)
    for _ in range(30):
        assert search.look() == []
    assert search.skipped == {"symlink": 1}


def test_a_symlinked_folder_is_refused_once(search: Search, tmp_path: Path) -> None:
    FakeRank(tmp_path / "elsewhere", FakeClock())
    (search.run_dir / str(ME)).rmdir()
    (search.run_dir / str(ME)).symlink_to(tmp_path / "elsewhere" / str(ME))
    for _ in range(30):
        assert search.look() == []
    assert search.skipped == {"symlink": 1}


def test_a_symlinked_run_directory_is_refused(tmp_path: Path) -> None:
    FakeRank(tmp_path / "elsewhere", FakeClock())
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    search = Search(tmp_path / "run")
    assert search.look() == []
    assert search.look() == []
    assert search.skipped == {"symlink": 1}


def test_a_file_in_place_of_a_folder_is_refused(search: Search) -> None:
    (search.run_dir / str(ME)).rmdir()
    (search.run_dir / str(ME)).touch()
    assert search.look() == []
    assert search.skipped == {"not_directory": 1}


def test_a_folder_of_another_uid_than_its_name_is_refused(search: Search) -> None:
    FakeRank(search.run_dir, FakeClock(), uid=ME + 1)
    for _ in range(30):
        assert search.look() == []
    assert search.skipped == {"owner": 1}


@as_root
def test_a_ring_of_another_owner_than_its_folder_is_refused(search: Search) -> None:
    os.chown(search.rank().path, 4321, -1)
    for _ in range(30):
        assert search.look() == []
    assert search.skipped == {"owner": 1}


@as_root
def test_a_ring_that_its_owner_gets_back_is_found(search: Search) -> None:
    rank = search.rank()
    os.chown(rank.path, 4321, -1)
    search.look()
    os.chown(rank.path, ME, -1)
    assert len(search.look(RECHECK_S)) == 1


def test_a_hard_link_is_refused(search: Search, tmp_path: Path) -> None:
    rank = FakeRank(tmp_path / "elsewhere", FakeClock())
    os.link(rank.path, mine(search))
    assert search.look() == []
    assert search.skipped == {"hard_link": 1}


def test_pipes_sockets_and_folders_are_never_opened(search: Search) -> None:
    os.mkfifo(mine(search, "1-1.ring"))
    mine(search, "2-2.ring").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(mine(search, "3-3.ring")))
        assert search.look() == []
    assert search.skipped == {"not_regular": 3}


def test_ring_discovery_rechecks_a_refused_ring_after_it_changes(search: Search) -> None:
    rank = search.rank()
    [ring] = search.look()
    search.rings.clear()
    search.finder.refuse(ring, "version", "too new", now_s=search.now_s)
    for _ in range(30):
        assert search.look() == []
    os.utime(rank.path, ns=(1, 1))
    assert len(search.look(RECHECK_S)) == 1
    assert search.skipped == {"version": 1}


def test_a_blank_ring_has_time_to_be_made_then_is_reported_once(search: Search) -> None:
    search.rank()
    looks = 0
    while search.now_s < 4 * BLANK_GRACE_S:
        for ring in search.look():
            search.rings.clear()
            looks += 1
            assert search.skipped == {} or search.now_s > BLANK_GRACE_S
            search.finder.postpone(ring, now_s=search.now_s)
    assert search.skipped == {"magic": 1}
    assert 2 * BLANK_GRACE_S - 2 < looks < 2 * BLANK_GRACE_S + 10  # every poll, then every RECHECK_S


def test_ring_discovery_returns_a_ring_set_aside_without_counting_a_skip(search: Search) -> None:
    search.rank()
    [ring] = search.look()
    search.rings.clear()
    search.finder.set_aside(ring)
    assert search.look(RECHECK_S)[0].place == ring.place
    assert search.skipped == {}


def test_removing_a_ring_takes_along_what_its_process_left_and_nothing_else(search: Search) -> None:
    search.rank()
    [ring] = search.look()
    search.rings.clear()
    mine(search, "100-6.ring").touch()
    mine(search, "100-6.oom.pickle").touch()
    mine(search, oom_snapshot_name(ring.process)).touch()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(mine(search, socket_name(ring.process))))
    search.finder.remove(ring)
    assert sorted(path.name for path in (search.run_dir / str(ME)).iterdir()) == ["100-6.oom.pickle", "100-6.ring"]


def test_removing_spares_a_file_that_took_the_name(search: Search) -> None:
    rank = search.rank()
    [ring] = search.look()
    search.rings.clear()
    rank.path.rename(mine(search, "kept"))
    rank.path.write_text("another file")
    mine(search, socket_name(ring.process)).write_text("no socket")
    mine(search, oom_snapshot_name(ring.process)).symlink_to("kept")
    search.finder.remove(ring)
    assert mine(search, oom_snapshot_name(ring.process)).is_symlink()
    assert rank.path.read_text() == "another file"
    assert mine(search, socket_name(ring.process)).exists()


def test_ring_discovery_bounds_opens_per_poll_and_continues_at_the_next(search: Search) -> None:
    count = MAX_OPENS_PER_POLL + 10
    for pid in range(1, count + 1):
        mine(search, ring_name(ProcessId(pid, 1))).touch()
    assert len(search.look()) == MAX_OPENS_PER_POLL
    assert len(search.look()) == 10
    assert search.look() == []


def test_a_folder_with_too_many_rings_is_said_once(search: Search) -> None:
    for pid in range(1, MAX_RINGS_PER_FOLDER + 3):
        mine(search, ring_name(ProcessId(pid, 1))).symlink_to("nowhere")
    for _ in range(12):
        search.look()
    assert search.skipped == {"too_many": 1, "symlink": MAX_RINGS_PER_FOLDER}


def test_a_ring_among_folders_that_took_all_places_is_found_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has a range in /etc/subuid owns 65,536 uids, and may make a folder for each."""
    monkeypatch.setattr("tidegauge.agent.run_dirs.user_folders.MAX_FOLDERS_OF_CONTAINER", 64)
    for uid in range(100_000, 100_100):
        (tmp_path / str(uid)).mkdir()
    finder = RingFinder(lambda: [FakeContainerRunDir(tmp_path)], SkipCounts(logging.getLogger("test")))
    assert finder.new_rings(0.0) == []
    rank = FakeRank(tmp_path, FakeClock())
    now_s = GIVES_WAY_S
    [ring] = finder.new_rings(now_s)
    assert str(ring.place) == str(rank.path)
    for _ in range(50):  # it would be handed out again, had it ever been let go
        now_s += GIVES_WAY_S
        assert finder.new_rings(now_s) == []
    later = FakeRank(tmp_path, FakeClock(), process=ProcessId(4243, 7))
    [other] = finder.new_rings(now_s + GIVES_WAY_S)
    assert str(other.place) == str(later.path)
    for found in (ring, other):
        os.close(found.fd)


def test_ring_discovery_continues_with_the_next_user_at_each_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rings without a process are set aside and opened again and again: nobody may wait for all of them for long."""
    monkeypatch.setattr("tidegauge.agent.rings.discovery.MAX_OPENS_PER_POLL", 4)
    for uid in range(40):
        FakeRank(tmp_path, FakeClock(), uid=5000 + uid)
    finder = RingFinder(lambda: [FakeContainerRunDir(tmp_path)], SkipCounts(logging.getLogger("test")))
    seen: set[int] = set()
    for poll in range(11):
        for ring in finder.new_rings(poll * RECHECK_S):
            seen.add(ring.place.uid)
            finder.set_aside(ring)
    assert len(seen) == 40


def test_the_nodes_own_run_directories_share_what_is_opened_at_a_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegauge.agent.rings.discovery.MAX_OPENS_PER_POLL", 3)
    run_dirs = [HostRunDir(tmp_path / name) for name in ("one", "two")]
    for run_dir in run_dirs:
        folder = run_dir.path / str(os.getuid())
        folder.mkdir(parents=True)
        for pid in range(100, 104):
            (folder / f"{pid}-1.ring").touch()
    finder = RingFinder(lambda: run_dirs, SkipCounts(logging.getLogger("test")))
    found = [finder.new_rings(0.5 * poll) for poll in range(6)]
    assert max(map(len, found)) <= 3
    rings = [ring for at_poll in found for ring in at_poll]
    assert len({ring.place for ring in rings}) == 8
    for ring in rings:
        finder.forget(ring)


def test_ring_discovery_does_not_rescan_refused_files_for_each_folder(tmp_path: Path) -> None:
    """Somebody's thousands of bad names beside hundreds of folders took a second of a poll."""
    (tmp_path / "1").mkdir()
    for number in range(500):
        (tmp_path / "1" / f"{number}-x.ring").touch()
    skips = SkipCounts(logging.getLogger("test"))
    finder = RingFinder(lambda: [FakeContainerRunDir(tmp_path)], skips)
    finder.new_rings(0.0)
    (tmp_path / "2").mkdir()
    looked_at = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal looked_at
        looked_at += event == "call"

    finder.new_rings(0.5)  # folder 1 is listed once more, folder 2 for the first time
    for number in range(3, 40):
        (tmp_path / str(number)).mkdir()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        finder.new_rings(1.0)
    finally:
        sys.setprofile(before)
    assert looked_at < 37 * 100


def test_a_flood_of_refusals_is_counted_whole_and_logged_in_part(caplog: pytest.LogCaptureFixture) -> None:
    skips = SkipCounts(logging.getLogger("flood"))
    with caplog.at_level(logging.INFO, logger="flood"):
        for number in range(1000):
            skips.add("magic", f"ring {number}", "random bytes", now_s=number * 0.01)
        skips.add("magic", "ring", "random bytes", now_s=100)
    assert skips.snapshot() == {"magic": 1001}
    assert len(caplog.records) == 22
    assert "980 more" in caplog.text
