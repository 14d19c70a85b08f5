"""Wishes and answers as files in the state directory."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from scheduler_values import JOB
from tidegauge.cluster.evidence_asks import FORGOTTEN_S, MAX_FILE_BYTES, EvidenceAsks, WishAnswer


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


def test_what_nobody_fetched_is_removed(asks: EvidenceAsks, folder: Path) -> None:
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
