"""Credentials of MUNGE: which are looked at, how many, and what is told of those that do not count.

``tests/integration/test_munge_login.py`` asks a real munged.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from login_world import NAMES, FakeMunged, FakeTime
from tidegauge.http.access import Refusal
from tidegauge.http.munge import (
    BUSY,
    HAS_PAYLOAD,
    INVALID,
    PEER_BURST,
    UNAVAILABLE,
    MungeLogin,
    MungeRefusedError,
    MungeUnavailableError,
    MungeUser,
    Unmunge,
)


def status(answer: MungeUser | Refusal) -> int:
    assert isinstance(answer, Refusal)
    return answer.status


def test_a_uid_is_the_user_of_that_name_here() -> None:
    munged = FakeMunged()
    login = MungeLogin(munged.uid_of, name_of=NAMES.get)
    assert login.user(munged.credential(1, 1002), "a") == MungeUser(1002, "bob")
    nameless = login.user(munged.credential(2, 4711), "a")
    assert isinstance(nameless, Refusal)
    assert (nameless.status, "uid 4711 has no name" in nameless.text) == (403, True)


@pytest.mark.parametrize(
    "credential",
    ["", "MUNGE", "MUNGE::", "munge:AAAA:", "MUNGE:AA AA:", "MUNGE:AAAA", "MUNGE:AAAA:x", "MUNGE:AA\nAA:",
     "MUNGE:" + "A" * 2000 + ":", "MUNGE:A===:", "--help", "MUNGE:\u0410\u0410:"],
)  # fmt: skip
def test_what_has_not_the_form_of_a_credential_starts_no_process(credential: str) -> None:
    def never(_: str) -> int:
        raise AssertionError("unmunge was asked")

    assert MungeLogin(never).user(credential, "a") == Refusal(401, INVALID)


def test_one_address_cannot_start_processes_without_end() -> None:
    now, munged = FakeTime(), FakeMunged()
    login = MungeLogin(munged.uid_of, name_of=NAMES.get, monotonic_s=now)
    answers = [login.user(munged.credential(n, 1001), "10.0.0.66") for n in range(PEER_BURST + 5)]
    assert [one for one in answers if isinstance(one, Refusal)] == [Refusal(429, BUSY, (("Retry-After", "5"),))] * 5
    assert isinstance(login.user(munged.credential(99, 1001), "10.0.0.67"), MungeUser)
    now.now_s += 10
    assert isinstance(login.user(munged.credential(100, 1001), "10.0.0.66"), MungeUser)


def test_a_munged_that_does_not_answer_admits_nobody() -> None:
    def away(_: str) -> int:
        raise MungeUnavailableError("away")

    assert MungeLogin(away).user("MUNGE:AAAA:", "a") == Refusal(503, UNAVAILABLE)


def program(folder: Path, script: str) -> Unmunge:
    """``unmunge`` that does as the script says."""
    file = folder / "unmunge"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return Unmunge(None, program=str(file), timeout_s=20)


def test_unmunge_is_given_the_credential_by_its_input_and_no_word_of_it_as_an_argument(tmp_path: Path) -> None:
    unmunge = program(
        tmp_path, f'cat > {tmp_path}/in; echo "$@" > {tmp_path}/arguments; printf "STATUS: 0\\nUID:  7\\nLENGTH:  0\\n"'
    )
    assert unmunge.uid_of("MUNGE:AAAA:") == 7
    assert (tmp_path / "in").read_text() == "MUNGE:AAAA:\n"
    assert (tmp_path / "arguments").read_text() == "--numeric --output=/dev/null --keys=STATUS,UID,LENGTH\n"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("exit 15", MungeRefusedError), ("exit 17", MungeRefusedError), ("exit 8", MungeRefusedError),
        ("exit 6", MungeUnavailableError), ("exit 1", MungeUnavailableError), ("kill -9 $$", MungeUnavailableError),
        ("true", MungeUnavailableError), ("echo UID: 0", MungeUnavailableError),
        ("printf 'STATUS: 0\\nLENGTH: 0\\n'", MungeUnavailableError),
        ("printf 'STATUS: 17\\nUID: 0\\nLENGTH: 0\\n'", MungeUnavailableError),
        ("printf 'STATUS: 0\\nUID: 0\\n'", MungeRefusedError),
        ("yes STATUS: 0", MungeUnavailableError),
    ],
)  # fmt: skip
def test_no_other_end_of_unmunge_names_anybody(tmp_path: Path, script: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        program(tmp_path, script).uid_of("MUNGE:AAAA:")


def test_a_credential_that_carries_data_is_of_another_program(tmp_path: Path) -> None:
    with pytest.raises(MungeRefusedError) as refused:
        program(tmp_path, "printf 'STATUS: 0\\nUID: 1\\nLENGTH: 12\\n'").uid_of("MUNGE:AAAA:")
    assert str(refused.value) == HAS_PAYLOAD


def test_unmunge_that_hangs_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "unmunge"
    file.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 1000\n")
    file.chmod(0o755)
    began_s = time.monotonic()
    with pytest.raises(MungeUnavailableError):
        Unmunge(None, program=str(file), timeout_s=0.5).uid_of("MUNGE:AAAA:")
    assert time.monotonic() - began_s < 100
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_without_the_program_nobody_comes_in() -> None:
    with pytest.raises(MungeUnavailableError):
        Unmunge(None, program="/nowhere/unmunge").uid_of("MUNGE:AAAA:")
