"""``replace_file``: the old file or the new one, never a part, and nobody else's."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from tidegauge.files import replace_file, why_unwritable


def test_replaced_file_has_its_mode_whatever_the_umask_is(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for mode in (0o600, 0o644):
        before = os.umask(0o077)
        try:
            replace_file(path, b"new", mode=mode, durable=True)
        finally:
            os.umask(before)
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)
    assert list(tmp_path.iterdir()) == [path]


def test_replaced_link_is_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "state"
    victim.write_text("mine")
    path.symlink_to(victim)
    replace_file(path, b"new")
    assert (victim.read_text(), path.read_text(), path.is_symlink()) == ("mine", "new", False)


def test_replaced_file_is_found_in_the_folder_of_a_descriptor(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        replace_file("a" * 255, b"new", dir_fd=fd)
    finally:
        os.close(fd)
    assert (tmp_path / ("a" * 255)).read_bytes() == b"new", "a draft's name is not longer than names may be"


@pytest.mark.parametrize("call", ["fchmod", "fsync", "replace"])
def test_file_stays_as_it_was_and_no_draft_is_left_when_replacing_fails(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    path.write_text("old")

    def fails(*_: object, **__: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="no room"):
        replace_file(path, b"new", durable=True)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("state", "old")]


def test_error_of_a_write_names_the_file_and_not_its_draft(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            replace_file(tmp_path / "state", b"new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "state")
    with pytest.raises(FileNotFoundError) as missing:
        replace_file(tmp_path / "none" / "state", b"new")
    assert missing.value.filename == str(tmp_path / "none" / "state")


def test_disk_without_inodes_is_told_from_one_without_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs(tmp_path)
    values = {name: getattr(room, name) for name in dir(room) if name.startswith("f_")}

    def full(**what: int) -> SimpleNamespace:
        return SimpleNamespace(**{**values, "f_bavail": 1 << 30, "f_files": 9, "f_favail": 9, **what})

    monkeypatch.setattr(os, "statvfs", lambda _: full(f_favail=0))
    assert why_unwritable(tmp_path) == "No space left on device: it has as many files as it can (df -i)"
    monkeypatch.setattr(os, "statvfs", lambda _: full(f_bavail=0))
    assert why_unwritable(tmp_path) == "No space left on device"
    monkeypatch.setattr(os, "statvfs", lambda _: full(f_files=0, f_favail=0))
    assert why_unwritable(tmp_path) is None, "a file system that counts none, as btrfs"


def test_folder_that_can_be_written_is_told_from_one_that_cannot_and_stays_as_it_was(tmp_path: Path) -> None:
    assert why_unwritable(tmp_path) is None
    assert why_unwritable(tmp_path / "none") == "No such file or directory"
    assert why_unwritable(Path("/proc/self")) is not None
    assert list(tmp_path.iterdir()) == []
