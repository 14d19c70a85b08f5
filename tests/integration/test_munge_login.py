"""Logins with credentials of a real munged: of several users, used twice, too old, for others, of another key."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from integration.needs import missing
from tidegauge.http.access import NO_HEADERS, LoggedIn, Refusal, Viewer
from tidegauge.http.credentials import BesideFiles
from tidegauge.http.door import WebDoor
from tidegauge.http.munge import HAS_PAYLOAD, INVALID, UNAVAILABLE, MungeLogin, Unmunge
from tidegauge.settings import Settings
from waiting import PATIENCE_S

USERS = ("root", "daemon", "nobody")
NAMELESS = 51_234


class Munged(NamedTuple):
    """A running munged."""

    socket: Path

    def credential(self, *options: str, uid: int | None = None, payload: str | None = None) -> str:
        """Made by this user; ``None``: by whoever runs the test."""
        as_user = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        what = ["--no-input"] if payload is None else [f"--string={payload}"]
        command = [*as_user, "munge", *what, f"--socket={self.socket}", *options]
        made = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        return made.stdout.strip()

    def door(self) -> WebDoor:
        settings = Settings(munge_login=True, munge_socket=self.socket, api_admins="daemon")
        return WebDoor(settings, BesideFiles(munge=MungeLogin(Unmunge(settings.munge_socket).uid_of)))


@pytest.fixture(scope="module")
def munged() -> Iterator[Munged]:
    with running_munged() as munged:
        yield munged


@contextmanager
def running_munged() -> Iterator[Munged]:
    # Not below pytest's folder, which every session of pytest closes to others again.
    with tempfile.TemporaryDirectory(prefix="tidegauge-munge-") as folder:
        Path(folder).chmod(0o755)
        yield from serving(Path(folder))


def serving(folder: Path) -> Iterator[Munged]:
    if not all(shutil.which(program) for program in ("munge", "unmunge", "munged")):
        missing("needs munge")
    if os.geteuid() != 0:
        missing("needs root: credentials of several users")
    key = folder / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    socket = folder / "socket"
    files = {"socket": socket, "key-file": key, "pid-file": folder / "pid", "seed-file": folder / "seed"}
    options = [f"--{name}={path}" for name, path in files.items()]
    with (folder / "out").open("wb") as out:
        process = subprocess.Popen(["munged", "--foreground", "--force", *options], stdout=out, stderr=out)
    try:
        until_s = time.monotonic() + PATIENCE_S
        while not socket.is_socket():
            assert process.poll() is None, (folder / "out").read_text()
            assert time.monotonic() < until_s, (folder / "out").read_text()
            time.sleep(0.02)  # between two looks
        yield Munged(socket)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def refused(door: WebDoor, credential: str) -> Refusal:
    answer = door.admit(f"Munge {credential}", "10.0.0.1")
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize("name", USERS)
def test_a_user_is_who_made_the_credential_and_root_is_no_admin_by_its_uid(munged: Munged, name: str) -> None:
    uid = pwd.getpwnam(name).pw_uid
    viewer = munged.door().admit(f"Munge {munged.credential(uid=uid)}", "10.0.0.1")
    is_admin = name == "daemon"
    assert viewer == Viewer(name, sees_all=is_admin, reads_metrics=is_admin)


def test_nobody_can_make_a_credential_of_somebody_else(munged: Munged) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        munged.credential("--uid=0", uid=pwd.getpwnam("nobody").pw_uid)


def test_a_uid_without_a_name_is_refused_with_words(munged: Munged) -> None:
    answer = refused(munged.door(), munged.credential(uid=NAMELESS))
    assert (answer.status, f"uid {NAMELESS} has no name" in answer.text) == (403, True)


def test_a_credential_counts_once_as_munged_has_it_wherever_it_is_shown(munged: Munged) -> None:
    door, other = munged.door(), munged.door()
    credential = munged.credential()
    assert isinstance(door.log_in(f"Munge {credential}", "10.0.0.1", NO_HEADERS), LoggedIn)
    for again in (refused(door, credential), refused(other, credential)):
        assert (again.status, "used before" in again.text) == (401, True)
    assert isinstance(door.log_in(f"Munge {credential}", "10.0.0.1", NO_HEADERS), Refusal)


def test_what_does_not_count_is_told_with_the_next_step(munged: Munged) -> None:
    door = munged.door()
    old = munged.credential("--ttl=1")
    time.sleep(2.1)  # munge counts in whole seconds
    assert "has expired" in refused(door, old).text
    assert "for another user" in refused(door, munged.credential(f"--restrict-uid={NAMELESS}")).text
    assert refused(door, munged.credential(payload="of slurmctld")).text == HAS_PAYLOAD
    whole = munged.credential()
    assert refused(door, whole[:20] + ("B" if whole[20] != "B" else "C") + whole[21:]).text == INVALID
    assert refused(door, whole[: len(whole) // 2] + ":").text == INVALID
    assert isinstance(door.admit(f"Munge {whole}", "10.0.0.1"), Viewer), "what was tried before spoils nothing"


def test_a_credential_for_the_services_own_user_counts(munged: Munged) -> None:
    made = munged.credential(f"--restrict-uid={os.geteuid()}", uid=pwd.getpwnam("nobody").pw_uid)
    viewer = munged.door().admit(f"Munge {made}", "10.0.0.1")
    assert isinstance(viewer, Viewer)
    assert viewer.name == "nobody"


def test_a_credential_of_another_cluster_is_none(munged: Munged) -> None:
    with running_munged() as other:
        assert refused(munged.door(), other.credential()).text == INVALID


def test_without_a_munged_nobody_comes_in(munged: Munged, tmp_path: Path) -> None:
    settings = Settings(munge_login=True, munge_socket=tmp_path / "nobody-listens")
    door = WebDoor(settings, BesideFiles(munge=MungeLogin(Unmunge(settings.munge_socket).uid_of)))
    answer = refused(door, munged.credential())
    assert (answer.status, answer.text) == (503, UNAVAILABLE)
