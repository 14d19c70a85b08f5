"""``replace_file``: the old file or the new one, never a part, and nobody else's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tidegauge.files import replace_file


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
