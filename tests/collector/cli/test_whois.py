"""``tidegauge whois`` and the key behind it."""

from __future__ import annotations

from pathlib import Path

import pytest

from person_data import ADA
from person_state import prepare
from sample_views import NOW_S
from tidegauge.cli.main import main
from tidegauge.cluster.pseudonym_key import open_pseudonyms, pseudonyms_of
from tidegauge.cluster.service_record import StateFiles
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.core.incidents.acts import ActKind, PersonAct
from tidegauge.settings import Settings


@pytest.fixture
def files(tmp_path: Path) -> StateFiles:
    return prepare(tmp_path / "state")


def whois(files: StateFiles, pseudonym: str) -> int:
    return main(["whois", pseudonym, "--set", f"state_dir={files.root}"])


def test_a_pseudonym_is_resolved_by_who_reads_the_heads_key(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    known = open_pseudonyms(files.pseudonym_key)
    assert files.pseudonym_key.stat().st_mode & 0o077 == 0
    assert whois(files, known.of(ADA.name)) == 0
    assert capsys.readouterr().out == f"{ADA.name}\n"


def test_who_acted_on_anothers_incident_is_resolved_as_the_channel_wrote_it(
    files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    known = open_pseudonyms(files.pseudonym_key)
    store = open_store(sqlite_url(files.root))
    store.acts.begin(PersonAct("a", ADA.number, ActKind.ACKNOWLEDGE, "grace-of-the-office", True, NOW_S))
    store.close()
    assert whois(files, known.of("grace-of-the-office").capitalize()) == 0, 'a line begins "User-3f9a… acknowledged"'
    assert capsys.readouterr().out == "grace-of-the-office\n"


def test_the_same_key_is_used_ever_after(files: StateFiles) -> None:
    first = open_pseudonyms(files.pseudonym_key).of(ADA.name)
    assert open_pseudonyms(files.pseudonym_key).of(ADA.name) == first
    assert list(files.root.glob("pseudonym.key.*")) == []


def test_a_forgotten_user_is_not_resolved(files: StateFiles, capsys: pytest.CaptureFixture[str]) -> None:
    known = open_pseudonyms(files.pseudonym_key)
    assert main(["forget", ADA.name, "--yes", "--set", f"state_dir={files.root}"]) == 0
    assert whois(files, known.of(ADA.name)) == 2
    assert "the user's data may be deleted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("forgotten-1a2b3c4d", "nobody can tell any more"),
        ("ada", "is no pseudonym"),
        ("user-0123456789ab", "user_pseudonyms=true"),
    ],
)
def test_what_cannot_be_resolved_says_why(
    asked: str, said: str, files: StateFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whois(files, asked) == 2
    assert said in capsys.readouterr().err


def test_a_damaged_key_shows_no_names(files: StateFiles, caplog: pytest.LogCaptureFixture) -> None:
    files.pseudonym_key.write_text("no key")
    known = pseudonyms_of(Settings(user_pseudonyms=True), files)
    assert known is not None
    assert ADA.name not in known.of(ADA.name)
    assert "pseudonyms are made up" in caplog.text
    assert pseudonyms_of(Settings(), files) is None
