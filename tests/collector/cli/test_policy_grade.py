"""``tidegauge policy grade``: an answer, and the table of the site's precision."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from loop_store import FakeStore, serving, told_store
from sample_views import NOW_S
from scheduler_values import decision, incident
from tidegauge.cli.main import main
from tidegauge.cli.times import day
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord, DecisionStatus, Disposition, LoopStatus, Outcome
from tidegauge.core.incidents.grades import EXAMPLES, RULE, RULE_NOTE, Grade, GradeAnswer
from tidegauge.http.access import LoginDoor
from tidegauge.http.door_start import open_door
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings

STATUS = LoopStatus("observe", None)
NAMES = ("ada", "grace", "boss")


@pytest.fixture
def store() -> FakeStore:
    """Incident 1 of ada's told her; 2 is grace's, and nobody was told."""
    return told_store()


@pytest.fixture
def tokens() -> dict[str, str]:
    return {name: make_token() for name in NAMES}


@pytest.fixture
def door(tmp_path: Path, tokens: dict[str, str]) -> LoginDoor:
    file = tmp_path / "tokens"
    file.write_text("\n".join(token_line(name, token) for name, token in tokens.items()))
    file.chmod(0o600)
    return open_door(Settings(api_tokens_file=file, api_admins="boss"), what="a test")


@pytest.fixture
def url(store: FakeStore, door: LoginDoor) -> Iterator[str]:
    with serving(store, STATUS, door) as url:
        yield url


@pytest.fixture
def become(monkeypatch: pytest.MonkeyPatch, tokens: dict[str, str]) -> Callable[[str], None]:
    return lambda name: monkeypatch.setenv("TIDEGAUGE_API_TOKEN", tokens[name])


def add(store: FakeStore, number: int, *, told: bool = True) -> None:
    """An incident of ada's that told her, or would have."""
    one = incident(number=number, job=JobKey(str(number), 0, 1001))
    store.incidents.story.append(IncidentChange(ChangeKind.OPENED, NOW_S, one))
    made = decision(decision_id=f"of {number}", incident=one)
    store.audit.made.append(
        DecisionRecord(made, DecisionStatus.FINISHED, Outcome.DONE)
        if told
        else DecisionRecord(replace(made, disposition=Disposition.WOULD), DecisionStatus.FINISHED)
    )


def grade(store: FakeStore, number: int, said: Grade) -> None:
    store.grades.add(number, GradeAnswer(said, "ada", False, NOW_S))


# an answer


def test_an_owner_answers_and_an_admin_has_the_last_word(
    url: str, become: Callable[[str], None], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    become("ada")
    assert main(["policy", "grade", "1", "not-a-leak", "--comment", "a replay buffer", "--api", url]) == 0
    assert capsys.readouterr().out == "Recorded. Incident 1 counts as not a leak, says ada: a replay buffer\n"
    become("boss")
    assert main(["policy", "grade", "1", "leak", "--api", url]) == 0
    assert capsys.readouterr().out == "Recorded. Incident 1 counts as a leak, says boss (admin)\n"
    become("ada")
    assert main(["policy", "grade", "1", "not-a-leak", "--api", url]) == 0
    assert " ".join(capsys.readouterr().out.split()) == (
        f'Recorded. It does not count: boss (admin) answered "a leak" on {day(NOW_S)}, and an admin\'s answer counts '
        "before the owner's."
    )
    assert main(["policy", "grade", "1", "not-a-leak", "--api", url, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    answers, yours = printed["answers"], printed["yours"]
    assert yours == answers[-1]
    assert [(one["by"], one["grade"]) for one in answers] == [
        ("ada", "not_a_leak"), ("boss", "leak"), ("ada", "not_a_leak"), ("ada", "not_a_leak"),
    ]  # fmt: skip


def test_an_incident_of_somebody_elses_is_not_there_to_be_graded(
    url: str, become: Callable[[str], None], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    become("grace")
    assert main(["policy", "grade", "1", "leak", "--api", url]) == 2
    assert "no incident 1;" in capsys.readouterr().err
    assert store.grades.given == []


def test_a_service_that_asks_for_no_names_says_where_to_answer(
    store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(store, STATUS) as url:
        assert main(["policy", "grade", "1", "leak", "--api", url]) == 3
    assert "cannot tell who answers: on the head, its user or root answers" in capsys.readouterr().err
    assert store.grades.given == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["1"], "no grade: use `tidegauge policy grade 1 leak` or `not-a-leak`"),
        (["--comment", "why"], "--comment needs an incident and a grade"),
    ],
)
def test_half_an_answer_is_a_wrong_call(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "grade", *words, "--api", "http://127.0.0.1:1"]) == 2
    assert said in capsys.readouterr().err


def test_help_says_what_a_leak_is_in_the_words_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["policy", "grade", "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    for text in (*RULE.values(), RULE_NOTE, *(text for _, text in EXAMPLES)):
        assert text in printed


# the table


def test_the_table_counts_what_was_told_and_says_what_it_does_not_know(
    url: str, become: Callable[[str], None], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, told in ((3, True), (4, True), (5, False), (6, True)):
        add(store, number, told=told)
    for number, said in ((1, Grade.LEAK), (3, Grade.LEAK), (4, Grade.NOT_A_LEAK)):
        grade(store, number, said)
    become("boss")
    assert main(["policy", "grade", "--api", url]) == 0
    page = capsys.readouterr().out
    rows = [line.split("  ") for line in page.splitlines()[:4]]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["incidents", "notified", "would notify", "graded", "leak", "not a leak", "precision (graded)"],
        ["all", "4", "1", "3", "2", "1", "67 % (21 to 94)"],
        ["severity critical", "4", "1", "3", "2", "1", "67 % (21 to 94)"],
        ["cause leak (allocated)", "4", "1", "3", "2", "1", "67 % (21 to 94)"],
    ]
    assert "2 of 5 incidents are not graded, and the graded ones may not be representative." in page
    assert "Precision over all: 40 % if every ungraded one was false, 80 % if every one was right." in page
    assert "Not graded: 6, 5." in page
    assert "No rate per 1,000 GPU-days" in page
    assert "left out;" not in page


def test_the_table_as_json_has_the_incidents_and_the_rows(
    url: str, become: Callable[[str], None], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    grade(store, 1, Grade.LEAK)
    become("boss")
    assert main(["policy", "grade", "--json", "--api", url]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [one["number"] for one in answer["incidents"]] == [1]
    row = answer["precision"][0]
    assert (row["group"], row["told"], row["answered"], row["precision"], row["unanswered"]) == ("all", 1, 1, 1.0, 0)
    assert (row["precision_of_all"], round(row["low"], 2), row["high"]) == ([1.0, 1.0], 0.21, 1.0)


def test_a_table_without_an_answer_has_no_precision(
    url: str, become: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    become("boss")
    assert main(["policy", "grade", "--api", url]) == 0
    page = capsys.readouterr().out
    assert page.splitlines()[1].split()[-1] == "-"
    assert "Precision over all: 0 % if every ungraded one was false, 100 %" in page


def test_a_user_is_told_that_the_table_is_of_their_jobs_alone(
    url: str, become: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    become("grace")
    assert main(["policy", "grade", "--since", "7d", "--api", url]) == 0
    page = capsys.readouterr().out
    assert page.startswith("nothing to grade: no notifications in the last 7 days\n")
    assert "Only your jobs: the service sees you as grace" in page
    assert "GPU-days" not in page


def test_a_time_goes_with_the_table_and_not_with_an_answer(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "grade", "1", "leak", "--since", "7d", "--api", url]) == 2
    assert "--since cannot be combined with an incident" in capsys.readouterr().err


def test_the_story_of_an_incident_asks_and_tells_who_answered(
    url: str, become: Callable[[str], None], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.grades.add(1, GradeAnswer(Grade.NOT_A_LEAK, "ada", False, NOW_S, "a buffer\x1b[31m"))
    become("ada")
    assert main(["incidents", "show", "1", "--api", url]) == 0
    page = capsys.readouterr().out
    assert "graded: not a leak, says ada: a buffer" in page
    assert "\x1b" not in page
    assert page.splitlines()[-1] == (
        f"Was this a leak? tidegauge policy grade 1 leak | not-a-leak, or {url}/grade?incident=1"
    )
    assert main(["incidents", "show", "1", "--api", url, "--set", "public_url=https://head.example/"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("or https://head.example/grade?incident=1")
