"""Who a user of the cluster is on Slack."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge_exporter.slack.people import EMAIL, SLACK_ID, People, read_people


@pytest.fixture
def users(tmp_path: Path) -> Path:
    return tmp_path / "users.yaml"


def write(path: Path, text: str) -> None:
    """Another version of the file, as an editor makes it."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, path)


def test_the_file_goes_before_the_domain(users: Path) -> None:
    write(users, "# who is who\nada: U024BE7LH\ngrace: 'grace.hopper@navy.example'\n")
    people = People(users, "example.org")
    assert people.find("ada") == "U024BE7LH"
    assert people.find("grace") == "grace.hopper@navy.example"
    assert people.find("alan") == "alan@example.org"


def test_without_file_and_domain_nobody_is_known() -> None:
    assert People(None, None).find("ada") is None


def test_a_domain_may_be_written_with_its_at_sign() -> None:
    assert People(None, "@example.org").find("ada") == "ada@example.org"


@pytest.mark.parametrize("name", ["", "a b", "ada@evil.example", "ada\n", "<!channel>", "a/b", "-ada", "x" * 65])
def test_a_name_that_is_no_login_name_becomes_no_address(name: str) -> None:
    assert People(None, "example.org").find(name) is None


def test_names_that_yaml_takes_for_something_else_stay_names(users: Path) -> None:
    write(users, "no: U024BE7LH\n1001: U024BE7LX\nnull: U024BE7LY\n")
    people = People(users, None)
    assert [people.find(name) for name in ("no", "1001", "null")] == ["U024BE7LH", "U024BE7LX", "U024BE7LY"]


def test_a_change_of_the_file_counts_from_the_next_question_on(users: Path) -> None:
    write(users, "ada: U024BE7LH\n")
    people = People(users, None)
    assert people.find("ada") == "U024BE7LH"
    write(users, "ada: U99999999\n")
    assert people.find("ada") == "U99999999"


def test_a_line_that_cannot_be_used_is_named_and_the_others_count(
    users: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(users, "ada: U024BE7LH\n\ngrace: '#general'\nalan: [1]\nada: U99999999\n")
    people = People(users, None)
    assert people.find("ada") == "U024BE7LH"
    assert people.find("grace") is None
    assert "line 3: grace: '#general' is neither" in caplog.text
    assert "line 4: alan" in caplog.text
    assert "line 5: ada is named a second time" in caplog.text


@pytest.mark.parametrize(
    ("text", "said"), [("ada: [U1\n", "line 2"), ("- ada\n- grace\n", "not a list of users"), ("ada", "not a list")]
)
def test_a_file_that_is_broken_leaves_in_force_what_was_read_before(
    users: Path, caplog: pytest.LogCaptureFixture, text: str, said: str
) -> None:
    write(users, "ada: U024BE7LH\n")
    people = People(users, None)
    people.find("ada")
    write(users, text)
    assert people.find("ada") == "U024BE7LH"
    assert said in caplog.text


def test_a_file_that_is_not_there_is_said_once(users: Path, caplog: pytest.LogCaptureFixture) -> None:
    people = People(users, "example.org")
    for _ in range(3):
        assert people.find("ada") == "ada@example.org"
    assert len(caplog.records) == 1
    assert "No such file" in caplog.text
    write(users, "ada: U024BE7LH\n")
    assert people.find("ada") == "U024BE7LH"


def test_an_empty_file_names_nobody(users: Path) -> None:
    write(users, "# nobody yet\n")
    assert People(users, None).find("ada") is None


@given(text=st.text())
def test_any_text_is_read_or_refused_and_names_only_people(text: str) -> None:
    try:
        read = read_people(text)
    except ValueError:
        return
    assert all(SLACK_ID.fullmatch(who) or EMAIL.fullmatch(who) for who in read.known.values())
