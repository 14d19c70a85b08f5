"""Wishes and answers as files in the state directory."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from scheduler_values import JOB
from tidegauge.cluster.incident_loops.evidence_asks import FORGOTTEN_S, MAX_FILE_BYTES, EvidenceAsks, WishAnswer
from waiting import eventually


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "asks"


@pytest.fixture
def asks(folder: Path) -> EvidenceAsks:
    return EvidenceAsks(folder)


REQUEST = {"command": "evidence", "id": "x", "most_s": 120.0, "holders": True}


def test_a_wish_is_taken_once_as_it_was_made_and_only_its_user_can_read_it(asks: EvidenceAsks, folder: Path) -> None:
    assert asks.take() == ()
    wish = asks.put(JOB, 3, REQUEST)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert asks.take() == (wish,)
    assert (wish.job, wish.rank, wish.request) == (JOB, 3, REQUEST)
    assert asks.take() == ()


def test_a_wish_that_is_withdrawn_is_nobodys(asks: EvidenceAsks, folder: Path) -> None:
    wish = asks.put(JOB, 3, REQUEST)
    asks.answer(WishAnswer(wish.wish_id, error="late"))
    asks.withdraw(wish)
    assert list(folder.iterdir()) == []


def test_evidence_asks_remove_answers_that_were_never_fetched(asks: EvidenceAsks, folder: Path) -> None:
    wish = asks.put(JOB, 3, REQUEST)
    asks.answer(WishAnswer(wish.wish_id, {"ok": True}))
    long_ago_s = time.time() - FORGOTTEN_S - 1.0
    for path in folder.iterdir():
        os.utime(path, (long_ago_s, long_ago_s))
    assert asks.take() == ()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("content", [b"{", b"[]", b'{"wish_id": 1}', b"\xff", b"9" * (2 * MAX_FILE_BYTES)])
def test_a_damaged_wish_costs_the_others_nothing(asks: EvidenceAsks, folder: Path, content: bytes) -> None:
    wish = asks.put(JOB, 3, REQUEST)
    (folder / "0.ask.json").write_bytes(content)
    assert asks.take() == (wish,)
    assert asks.take() == ()


def test_a_damaged_answer_is_said_to_be_one(asks: EvidenceAsks, folder: Path) -> None:
    wish = asks.put(JOB, 3, REQUEST)
    (folder / f"{wish.wish_id}.answer.json").write_bytes(b"{}")
    answer = asks.fetch(wish)
    assert answer is not None
    assert answer.error is not None
    assert "cannot be read" in answer.error


def test_a_link_in_place_of_the_folder_is_never_written_through(tmp_path: Path) -> None:
    """The service's user may put one there, and root would write, and give away, what lies behind it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "asks").symlink_to(elsewhere)
    with pytest.raises(OSError, match="nothing was written"):
        EvidenceAsks(tmp_path / "asks").put(JOB, 3, REQUEST)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: a service of another user")
def test_evidence_asks_by_root_belong_to_the_service_user(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 4100, 4101)
    EvidenceAsks(state / "asks").put(JOB, 3, REQUEST)
    [wish] = (state / "asks").iterdir()
    for path in (state / "asks", wish):
        assert (path.stat().st_uid, path.stat().st_gid) == (4100, 4101)
    assert wish.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: a service of another user")
def test_a_folder_that_its_owner_swaps_for_a_link_meanwhile_leads_root_nowhere(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    for folder in (state, elsewhere):
        folder.mkdir()
    os.chown(state, 4100, 4101)
    swapping = os.fork()
    if swapping == 0:  # the service's user, as fast as it can
        with contextlib.suppress(BaseException):
            swap_for_ever(state, elsewhere)
        os._exit(0)
    try:
        refused = sum(not was_written(state) for _ in range(4000))
        refused = refused or eventually(lambda: not was_written(state))  # the other may have had no time yet
    finally:
        os.kill(swapping, signal.SIGKILL)
        os.waitpid(swapping, 0)
    assert refused, "nothing was ever swapped"
    assert list(elsewhere.iterdir()) == []
    assert (elsewhere.stat().st_uid, elsewhere.stat().st_gid) == (0, 0)


def was_written(state: Path) -> bool:
    try:
        EvidenceAsks(state / "asks").put(JOB, 3, REQUEST)
    except OSError:
        return False
    return True


def swap_for_ever(state: Path, elsewhere: Path) -> None:
    os.chdir(state)
    os.setgroups([])
    os.setgid(4101)
    os.setuid(4100)
    while True:
        with contextlib.suppress(OSError):
            os.symlink(elsewhere, "asks")
        with contextlib.suppress(OSError):
            os.unlink("asks")
        with contextlib.suppress(OSError):
            os.rename("asks", f"away-{time.monotonic_ns()}")
