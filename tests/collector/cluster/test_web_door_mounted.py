"""The door's files as a kubelet mounts Secrets: links to links, root's with a group that reads, replaced as a whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegauge.http.access import Refusal, Viewer
from tidegauge.http.door import WebDoor
from tidegauge.http.door_files import DoorFileError, read_door_files
from tidegauge.http.tokens import make_token, token_line
from tidegauge.secrets import others_may
from tidegauge.settings import Settings
from web_certificates import Authority

HEADS_USER = 10001
WEB = "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"
ADAS, BOBS = make_token(), make_token()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes files of root's and reads them as another user")


class SecretVolume:
    """What a kubelet's AtomicWriter makes of a Secret, with ``fsGroup`` and without."""

    def __init__(self, folder: Path, *, group: int | None = None) -> None:
        self.folder, self._group, self._count = folder, group, 0
        folder.mkdir(mode=0o755)

    def write(self, files: Mapping[str, str]) -> None:
        self._count += 1
        version = self.folder / f"..2026_11_23_10_00_00.{self._count}"
        version.mkdir()
        for name, text in files.items():
            (version / name).write_text(text)
            (version / name).chmod(0o400 if self._group is None else 0o440)
            if self._group is not None:
                os.chown(version / name, 0, self._group)
        data, new = self.folder / "..data", self.folder / "..data_tmp"
        old = data.resolve() if data.exists() else None
        new.symlink_to(version.name)
        new.rename(data)
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        for path in old.iterdir() if old else ():
            path.unlink()
        if old:
            old.rmdir()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def files(authority: Authority, **tokens: str) -> dict[str, str]:
    """Of a Secret with a new certificate."""
    pair = authority.issue("head")
    lines = "".join(f"{token_line(name, token)}\n" for name, token in tokens.items())
    return {
        "web.yml": WEB, "tls.crt": pair.certificate.read_text(), "tls.key": pair.key.read_text(), "api-tokens": lines,
    }  # fmt: skip


def door_settings(folder: Path) -> Settings:
    return Settings(web_config_file=folder / "web.yml", api_tokens_file=folder / "api-tokens")


def name_of(door: WebDoor, token: str) -> str | None:
    viewer = door.admit(f"Bearer {token}", "a")
    return viewer.name if isinstance(viewer, Viewer) else None


@contextmanager
def as_the_heads_user() -> Iterator[None]:
    """Of this process alone, and no longer than the block."""
    os.setegid(HEADS_USER)
    os.seteuid(HEADS_USER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_a_new_version_of_the_secret_counts_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    volume = SecretVolume(tmp_path / "web")
    volume.write(files(authority, ada=ADAS))
    door = WebDoor(door_settings(volume.folder))
    first = door.tls()
    assert first is not None
    assert door.tls() is first
    assert (name_of(door, ADAS), name_of(door, BOBS)) == ("ada", None)
    volume.write(files(authority, bob=BOBS))
    assert door.tls() not in (None, first)
    assert (name_of(door, ADAS), name_of(door, BOBS)) == (None, "bob")
    assert door.problem() is None


def test_a_new_version_that_is_broken_changes_nothing_until_the_next(tmp_path: Path, authority: Authority) -> None:
    volume = SecretVolume(tmp_path / "web")
    volume.write(files(authority, ada=ADAS))
    door = WebDoor(door_settings(volume.folder))
    first = door.tls()
    volume.write(files(authority, bob=BOBS) | {"tls.key": "CANARY"})
    assert door.tls() is first
    assert name_of(door, ADAS) == "ada"
    problem = door.problem()
    assert problem is not None
    assert "CANARY" not in problem.text
    volume.write(files(authority, bob=BOBS))
    assert name_of(door, BOBS) == "bob"
    assert door.problem() is None


@needs_root
def test_the_heads_user_reads_what_is_roots_and_its_groups(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = SecretVolume(tmp_path / "web", group=HEADS_USER)
    volume.write(files(authority, ada=ADAS))
    monkeypatch.chdir(volume.folder)  # the folders above are root's alone
    with as_the_heads_user():
        door = WebDoor(door_settings(Path()))
        assert name_of(door, ADAS) == "ada"
        read_door_files(door_settings(Path()))
    volume.write(files(authority, bob=BOBS))
    with as_the_heads_user():
        assert name_of(door, BOBS) == "bob"
        assert isinstance(door.admit(None, "a"), Refusal)


@needs_root
@pytest.mark.parametrize(("owner", "mode"), [(0, 0o460), (0, 0o444), (HEADS_USER, 0o440)])
def test_the_heads_user_refuses_what_others_may_change_or_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int, mode: int
) -> None:
    tokens = tmp_path / "web" / "api-tokens"
    tokens.parent.mkdir(mode=0o755)
    tokens.write_text(token_line("ada", ADAS))
    os.chown(tokens, owner, HEADS_USER)
    tokens.chmod(mode)
    monkeypatch.chdir(tokens.parent)
    with as_the_heads_user(), pytest.raises(DoorFileError, match=f"has mode {mode:04o}"):
        WebDoor(Settings(api_tokens_file=Path("api-tokens")))


@pytest.mark.parametrize(
    ("mode", "owner", "reader", "others"),
    [
        (0o600, 7, 7, False), (0o400, 0, 0, False), (0o440, 0, 7, False), (0o640, 0, 7, False),  # nobody else
        (0o440, 7, 7, True), (0o640, 0, 0, True), (0o440, 8, 7, True),  # a group, and not by root's word
        (0o660, 0, 7, True), (0o650, 0, 7, True), (0o604, 0, 7, True), (0o602, 7, 7, True), (0o620, 0, 7, True),
    ],
)  # fmt: skip
def test_others_may_access_a_file_is_judged_by_mode_owner_and_reader(
    mode: int, owner: int, reader: int, others: bool
) -> None:
    status = os.stat_result((stat.S_IFREG | mode, 1, 1, 1, owner, 7, 0, 0, 0, 0))
    assert others_may(status, reader) is others
