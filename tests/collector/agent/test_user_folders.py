"""Users' folders among any number of names that others made in the same run directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fake_run_dirs import FakeContainerRunDir
from tidegauge.agent.run_dirs.folders import HostRunDir, RunDir, UserFolder
from tidegauge.agent.run_dirs.user_folders import (
    ENTRIES_PER_S,
    GIVES_WAY_S,
    LOOKS_AGAIN,
    MAX_LOOKS,
    FoundFolders,
    UserFolders,
)

ME = os.getuid()
as_root = pytest.mark.skipif(ME != 0, reason="only root may give files away")
FLOOD = 3 * MAX_LOOKS


def look_into(folders: UserFolders, run_dir: RunDir, now_s: float) -> FoundFolders:
    with run_dir.opened() as fd:
        return folders.look(fd, now_s)


class Node:
    """A run directory, looked at twice a second."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.folders = UserFolders(HostRunDir(run_dir))
        self.now_s = 0.0
        self.refused: list[str] = []

    def look_at(self, now_s: float) -> FoundFolders:
        return look_into(self.folders, HostRunDir(self.run_dir), now_s)

    def look(self) -> list[int]:
        found = self.look_at(self.now_s)
        self.now_s += 0.5
        self.refused += [error.reason for _, error in found.refused]
        return sorted(folder.uid for folder, _ in found.folders)

    def flood(self, names: int = FLOOD) -> None:
        """What any user may do in a folder like /tmp."""
        for uid in range(100_000, 100_000 + names):
            (self.run_dir / str(uid)).mkdir()

    def user(self, uid: int) -> None:
        (self.run_dir / str(uid)).mkdir()
        os.chown(self.run_dir / str(uid), uid, uid)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "run").mkdir()
    return Node(tmp_path / "run")


def test_each_user_has_one_folder_however_many_names_they_make(node: Node) -> None:
    (node.run_dir / str(ME)).mkdir()
    node.flood()
    for _ in range(20):
        found = node.look()
    assert found == [ME]
    assert node.refused == ["owner"] * FLOOD, "each is said once"


@as_root
def test_user_folder_found_before_a_flood_stays(node: Node) -> None:
    node.user(4100)
    assert node.look() == [4100]
    node.flood()
    for _ in range(20):
        assert node.look() == [4100]


@as_root
def test_user_folder_made_after_a_flood_is_found(node: Node) -> None:
    node.flood()
    node.look()
    node.user(4100)
    assert any(node.look() == [4100] for _ in range(20))


@as_root
def test_a_flood_that_goes_on_hides_nobody(node: Node) -> None:
    node.user(4100)
    for turn in range(3):
        for uid in range(200_000 + turn * FLOOD, 200_000 + (turn + 1) * FLOOD):
            (node.run_dir / str(uid)).mkdir()
        node.look()
        node.user(4101 + turn)
    for _ in range(40):
        found = node.look()
    assert found == [4100, 4101, 4102, 4103]


def test_after_many_names_there_is_a_pause(node: Node) -> None:
    """Going through them is what they cost: 40 ms of a second at most."""
    (node.run_dir / str(ME)).mkdir()
    for number in range(int(ENTRIES_PER_S * 0.1)):
        os.close(os.open(node.run_dir / f"junk-{number}", os.O_CREAT, 0o600))
    assert node.look_at(0.0).folders
    (node.run_dir / str(ME)).rename(node.run_dir / "away")
    assert node.look_at(0.09).folders, "it is not looked for yet"
    assert not node.look_at(0.11).folders


@as_root
def test_a_folder_that_its_user_gets_back_is_found(node: Node) -> None:
    for uid in range(4100, 4100 + 2 * LOOKS_AGAIN):
        (node.run_dir / str(uid)).mkdir()
    node.look()
    os.chown(node.run_dir / "4110", 4110, 4110)
    assert any(node.look() == [4110] for _ in range(5))


def test_another_file_under_a_refused_name_is_looked_at(node: Node) -> None:
    mine = node.run_dir / str(ME)
    mine.symlink_to("/etc")
    assert node.look() == []
    assert node.refused == ["symlink"]
    mine.unlink()
    mine.mkdir()
    assert node.look() == [ME]


@as_root
def test_a_listing_that_was_cut_short_forgets_nobody(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for uid in (4100, 4101, 4102):
        node.user(uid)
    assert node.look() == [4100, 4101, 4102]
    monkeypatch.setattr("tidegauge.agent.run_dirs.user_folders.MAX_ENTRIES", 2)
    for _ in range(20):
        assert node.look() == [4100, 4101, 4102]
    (node.run_dir / "4101").rmdir()
    assert node.look() == [4100, 4102]


def test_a_folder_that_is_gone_is_forgotten(node: Node) -> None:
    (node.run_dir / str(ME)).mkdir()
    assert node.look() == [ME]
    (node.run_dir / str(ME)).rmdir()
    assert node.look() == []


@pytest.mark.parametrize("name", ["007", "-1", "1e3", "\u0661", "9" * 11, "root", "1 "])
def test_user_folder_named_without_a_uid_is_ignored(name: str, node: Node) -> None:
    (node.run_dir / name).mkdir()
    assert node.look() == []
    assert node.refused == []


class Crowd:
    """A run directory with few places."""

    def __init__(self, run_dir: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tidegauge.agent.run_dirs.user_folders.MAX_FOLDERS_OF_CONTAINER", most)
        run_dir.mkdir()
        self.run_dir = FakeContainerRunDir(run_dir)
        self.in_use: set[int] = set()
        self.folders = UserFolders(self.run_dir, self._in_use)
        self.now_s = 0.0

    def _in_use(self) -> set[UserFolder]:
        return {UserFolder(self.run_dir, uid) for uid in self.in_use}

    def make(self, *uids: int) -> None:
        for uid in uids:
            (self.run_dir.path / str(uid)).mkdir()

    def look(self, after_s: float = 0.5) -> set[int]:
        self.now_s += after_s
        return {folder.uid for folder, _ in look_into(self.folders, self.run_dir, self.now_s).folders}


def test_a_new_folder_gets_the_place_of_one_that_is_not_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(tmp_path / "run", 8, monkeypatch)
    squatters = range(5000, 5008)
    crowd.make(*squatters)
    assert crowd.look() == {*squatters}
    crowd.make(42)
    assert crowd.look() == {*squatters}, "they may just be starting"
    found = crowd.look(after_s=GIVES_WAY_S)
    assert 42 in found
    assert len(found) == 8
    crowd.in_use.add(42)
    for _ in range(100):
        found = crowd.look(after_s=GIVES_WAY_S)
        assert 42 in found
        assert len(found) == 8


def test_a_folder_in_use_gives_way_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(tmp_path / "run", 4, monkeypatch)
    crowd.make(1, 2, 3, 4)
    assert crowd.look() == {1, 2, 3, 4}
    crowd.in_use |= {1, 2, 3, 4}
    crowd.make(*range(5000, 5020))
    for _ in range(20):
        assert crowd.look(after_s=GIVES_WAY_S) == {1, 2, 3, 4}
    crowd.in_use.discard(3)
    found = crowd.look(after_s=GIVES_WAY_S)
    assert found > {1, 2, 4}
    assert len(found) == 4


def test_user_folders_rotate_so_that_none_stays_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(tmp_path / "run", 4, monkeypatch)
    crowd.make(*range(5000, 5004))
    crowd.look()
    crowd.make(5004)
    seen = [crowd.look(after_s=GIVES_WAY_S) for _ in range(400)]
    for uid in range(5000, 5005):
        assert any(uid in found for found in seen[1:])
        assert any(uid not in found for found in seen[1:])


def test_a_place_that_is_free_costs_nobody_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = Crowd(tmp_path / "run", 4, monkeypatch)
    crowd.make(1, 2, 3)
    crowd.look()
    crowd.make(4)
    for _ in range(5):
        assert crowd.look(after_s=GIVES_WAY_S) == {1, 2, 3, 4}


def test_folders_not_in_use_have_turns_and_those_in_use_are_looked_into_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegauge.agent.run_dirs.user_folders.MAX_IDLE_LOOKS", 4)
    crowd = Crowd(tmp_path / "run", 64, monkeypatch)
    crowd.make(*range(5000, 5030))
    crowd.in_use |= {5000, 5001}
    looks = [crowd.look() for _ in range(8)]
    assert all({5000, 5001} <= look and len(look) <= 6 for look in looks[1:])
    assert set().union(*looks) == {*range(5000, 5030)}, "everybody had a turn"
    crowd.make(42)
    assert 42 in crowd.look(), "a new one is looked into at once"
    assert len(crowd.folders.known) == 31, "no other is forgotten meanwhile"
