"""``tidegauge incidents``: the list, and the page that answers "why did you end my job?"."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from evidence_values import news
from loop_store import FakeStore, serving, told_store
from sample_views import NOW_S
from scheduler_values import decision, died_of_oom, finding, incident, oom_record, record
from tidegauge.cli.jobs import incident_acts
from tidegauge.cli.jobs import incidents as incident_command
from tidegauge.cli.main import main
from tidegauge.cli.timeline import timeline
from tidegauge.cli.times import clock, day, moment
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, Incident, IncidentCause, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, Disposition, LoopStatus, Outcome, UnderWay
from tidegauge.core.incidents.acts import ActKind, ActOutcome, ActWay, PersonAct
from tidegauge.core.incidents.evidence import with_evidence
from tidegauge.core.verdicts import Severity

REQUEUE = UnderWay("1:leak-requeue:3:1", ActionKind.REQUEUE, incident().key.job, NOW_S - 30.0, "waiting, 120 s left")
STATUS = LoopStatus("act", None, incidents_open=1, under_way=(REQUEUE,))


@pytest.fixture
def store() -> FakeStore:
    return told_store()


@pytest.fixture
def url(store: FakeStore) -> Iterator[str]:
    with serving(store, STATUS) as url:
        yield url


def test_open_incidents_are_a_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--api", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].split()[:3] == ["number", "job", "cause"]
    for word in ("4711", "leak", "critical", "open", "rank 1", "12.0 MiB", "14–22 min", "requeue: in progress"):
        assert word in lines[1]


def test_all_means_closed_ones_too_and_they_do_not_run_out_any_more(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["incidents", "--all", "--api", url])
    first = capsys.readouterr().out.splitlines()[1]
    assert first.startswith("2       4712 (attempt 1)  fragmentation  critical  closed  all alike (64)")
    assert first.endswith("would requeue")
    assert "min  " not in first


def test_growth_that_ended_in_an_error_ran_out_of_memory(
    url: str, store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    died = died_of_oom(number=9)
    store.incidents.story.append(IncidentChange(ChangeKind.CLOSED, NOW_S + 2.0, died))
    main(["incidents", "--all", "--api", url])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("9 ")]
    assert "ran out of memory" in line
    assert main(["incidents", "show", "9", "--api", url]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert page.startswith("incident 9: leak, critical, ran out of memory Rank 1 of job 4711 ran out of GPU memory at ")
    assert clock(NOW_S) in page
    assert "related ended in incident 2 (out_of_memory)" in page
    assert "closed: rank 1 ran out of memory at step 3,816 (wanted 20.0 MiB, 10.0 MiB free)" in page
    assert "runs out" not in page
    assert "22 min" not in page
    assert "What ended it cause: Live tensors accumulate" in page
    assert "28 s before the error: 17–28 s; it was right." in page
    assert "What happens next Before the next start" in page


def test_since_means_closed_ones_too(url: str, store: FakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    main(["incidents", "--since", "90m", "--json", "--api", url])
    assert len(json.loads(capsys.readouterr().out)["incidents"]) == 2, "the test's now lies ahead of ours"


def test_no_incident_is_said_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeStore(), STATUS) as url:
        assert main(["incidents", "--api", url]) == 0
        assert "no open incidents; `tidegauge incidents --all`" in capsys.readouterr().out
        main(["incidents", "--all", "--api", url])
        assert capsys.readouterr().out == "no incidents\n"


def test_a_list_that_is_cut_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["incidents", "--all", "--limit", "1", "--api", url])
    assert "only the newest 1 are shown; for more use --limit N" in capsys.readouterr().out


def test_json_is_what_the_service_answers(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "--json", "--api", url]) == 0
    answer = json.loads(capsys.readouterr().out)
    (only,) = answer["incidents"]
    assert (answer["url"], only["url"]) == (f"{url}/incidents", f"{url}/report?incident=1")
    assert (only["number"], only["ranks"], only["last_decision"]["decision"]["action"]) == (1, [1], "requeue")
    assert main(["incidents", "show", "1", "--json", "--api", url]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert sorted(shown) == ["acts", "answers", "decisions", "history", "incident", "left_out", "url"]
    assert shown["url"] == f"{url}/report?incident=1"


def test_on_a_terminal_a_list_names_its_web_page(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["incidents", "--api", url]) == 0
    assert url not in capsys.readouterr().out, "a pipe is for scripts"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["incidents", "--api", url]) == 0
    out = capsys.readouterr().out
    assert out.endswith(f"\nweb page: {url}/incidents\n")
    assert f";{url}/report?incident=1" not in out, "a dumb terminal gets no hyperlinks"
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert main(["incidents", "--api", url]) == 0
    assert re.search(rf"\x1b\]8;[^;]*;{re.escape(url)}/report\?incident=1\x1b\\", capsys.readouterr().out)


def test_the_page_tells_the_whole_story_in_order(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "show", "1", "--api", url]) == 0
    page = capsys.readouterr().out
    told = [
        "incident 1: leak, critical, open",
        "Rank 1 of job 4711 leaks 12.0 MiB per step since step 40; at this rate it runs out of memory in 14–22 min.",
        "owner       ada (uid 1001)",
        "growth      12.0 MiB per step (11.5–12.5 MiB), 960.0 MiB gained since step 40",
        "rank  host   GPU",
        "1     node0  1    1001",
        "What happened",
        f"\n{day(NOW_S - 600.0)}\n",
        f"{clock(NOW_S - 600.0)}  opened, severity warning: rank 1",
        f"{clock(NOW_S - 599.0)}  decided: notify: (rule leak-requeue, rung 1) rank 1 of job 4711 leaks",
        "notify: done: written to the job's terminal",
        "severity rose to critical",
        "checkpoint on hold (brake paused): (rule leak-requeue, rung 3) actions are paused: by root since noon",
        "decided: checkpoint",
        "checkpoint: started (start 2, after a crash or a temporary failure)",
        "checkpoint: done: 2 of 2 ranks saved at step 412",
        "decided: requeue",
        "requeue: started",
        "What happens next",
        "Under way: requeue: waiting, 120 s left.",
    ]
    places = [page.find(text) for text in told]
    assert -1 not in places, told[places.index(-1)]
    assert places == sorted(places)
    assert "new figures" not in page


def test_who_looks_at_an_incident_and_who_exempted_its_job_is_on_its_page(
    url: str, store: FakeStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW_S + 60.0)
    acknowledged = PersonAct("a", 1, ActKind.ACKNOWLEDGE, "root", True, NOW_S, ActWay.SLACK, outcome=ActOutcome.DONE)
    refused = acknowledged._replace(request_id="b", by="mallory", as_admin=False, outcome=ActOutcome.REFUSED)
    exempt = acknowledged._replace(request_id="c", kind=ActKind.EXEMPT, until_unix_s=NOW_S + 3600.0)
    for act in (acknowledged, refused, exempt):
        store.acts.begin(act)
    assert main(["incidents", "show", "1", "--api", url]) == 0
    page = capsys.readouterr().out
    assert "acknowledged by root (admin), 60 s ago" in page
    assert f"exempt      until {moment(NOW_S + 3600.0)}, by root (admin)" in page
    assert f"{clock(NOW_S)}  root (admin) acknowledged the incident, on Slack" in page
    assert "mallory" not in page
    assert main(["incidents", "--api", url]) == 0
    assert "open, root is at it" in capsys.readouterr().out
    assert main(["policy", "log", "--api", url]) == 0
    assert "mallory, acknowledge, on Slack, refused" in capsys.readouterr().out


def test_an_act_needs_a_name_and_its_refusal_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "acknowledge", "1", "--api", url]) != 0
    assert "no authentication, so it cannot tell who answers" in capsys.readouterr().err


def test_an_act_is_sent_as_a_form_and_its_answer_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, dict[str, str]]] = []

    def send(_: object, path: str, fields: dict[str, str]) -> dict[str, str]:
        sent.append((path, fields))
        return {"text": "For the next 8 h nothing is done."}

    monkeypatch.setattr(incident_acts, "send", send)
    assert main(["incidents", "exempt", "3", "--for", "8h"]) == 0
    assert main(["incidents", "unacknowledge", "3"]) == 0
    assert sent == [
        ("/api/v1/acts", {"incident": "3", "act": "exempt", "hours": "8"}),
        ("/api/v1/acts", {"incident": "3", "act": "unacknowledge"}),
    ]
    assert "For the next 8 h" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ("exempt", "3", "--for", "8d"), ("exempt", "3", "--for", "8m"), ("acknowledge",),
        ("acknowledge", "3", "--for", "8h"),
    ],
)  # fmt: skip
def test_an_act_that_makes_no_sense_is_refused_by_the_command(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as refused:
        raise SystemExit(main(["incidents", *words]))
    assert refused.value.code == 2


def test_the_page_of_a_wide_incident_shows_the_worst_ranks_and_counts_the_others(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["incidents", "show", "2", "--api", url])
    page = capsys.readouterr().out
    assert "and 48 more ranks; --json lists all of them" in page
    assert "would requeue: (rule fragmentation, rung 1) 64 ranks of job 4712" in page
    assert "closed at" in page
    assert "Nothing: the incident is closed." in page


def test_ranks_that_found_no_place_in_an_incident_are_counted_on_its_page() -> None:
    errors = tuple(finding(rank, oom=oom_record()) for rank in range(20))
    crowded = incident(IncidentCause.OUT_OF_MEMORY, findings=errors, ranks_left_out=1980, world_size=4000)
    page = dict(incident_command.figures(crowded, now_s=NOW_S))
    assert page["ranks"].startswith("2000 of 4000")


def test_ranks_that_found_no_place_in_an_incident_are_counted_in_lists_too(
    url: str, store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = tuple(finding(rank, oom=oom_record()) for rank in range(20))
    crowded = incident(IncidentCause.OUT_OF_MEMORY, number=7, findings=errors, ranks_left_out=1980, world_size=4000)
    store.incidents.story.append(IncidentChange(ChangeKind.OPENED, NOW_S, crowded))
    main(["incidents", "--api", url])
    assert "rank 0, 1, 2, 3 and 1996 more" in capsys.readouterr().out


def test_a_job_is_listed_under_the_name_that_was_given_in_place_of_an_id_that_was_made_up(
    url: str, store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    made_up = incident(number=7, job=JobKey("local-vm-20261126-120000-1479", 1, 1001), job_name="train")
    store.incidents.story.append(IncidentChange(ChangeKind.OPENED, NOW_S, made_up))
    main(["incidents", "--api", url])
    listed = capsys.readouterr().out
    assert "train (attempt 1)" in listed
    assert "local-vm" not in listed


def test_an_incident_that_does_not_exist_is_a_wrong_call(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", "show", "9", "--api", url]) == 2
    assert capsys.readouterr().err.startswith("tidegauge incidents: no incident 9;")
    assert main(["incidents", "show", "--api", url]) == 2
    assert "tidegauge incidents show NUMBER" in capsys.readouterr().err


def test_a_database_that_is_away_is_the_environments_fault(
    url: str, store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.problem = "disk full"
    assert main(["incidents", "--api", url]) == 3
    assert capsys.readouterr().err == (
        "tidegauge incidents: the database of incidents and actions is unavailable: disk full\n"
    )


@pytest.mark.parametrize("text", ["7", "d", "1y", "-1d", "1.5h", "7D", "٣d"])
def test_a_time_span_that_is_none_names_the_right_form(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["incidents", f"--since={text}"])
    assert caught.value.code == 2
    assert "7d" in capsys.readouterr().err


def told(made: DecisionRecord) -> list[str]:
    return [entry.text for entry in timeline([], [made])]


def test_a_reason_that_names_its_rule_is_not_told_twice() -> None:
    reason = "Rank 1 leaks. Incident 1, rule leak, rung 1 of 3."
    assert told(record(decision(reason=reason))) == [f"decided: notify: {reason}"]


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Outcome.FAILED, "requeue: failed: why"),
        (Outcome.UNVERIFIED, "requeue: accepted, but not confirmed: why"),
        (Outcome.NO_PROOF, "requeue: not proven in time: why"),
        (Outcome.SUPERSEDED, "requeue: skipped because the job had ended or changed: why"),
        (Outcome.STOPPED, "requeue: skipped because actions were stopped: why"),
    ],
)
def test_every_outcome_is_told(outcome: Outcome, text: str) -> None:
    made = record(decision(ActionKind.REQUEUE, attempt=2), outcome, detail="why")
    assert told(made) == ["decided: requeue: (rule leak, rung 1, try 2) rank 1 of job 4711 leaks 12 MiB a step", text]


def test_incidents_show_prints_a_decision_not_carried_out_in_one_line() -> None:
    held = decision(ActionKind.CAP, disposition=Disposition.WITHHELD, brake="exempt", reason="ada is exempt")
    assert told(record(held)) == ["cap on hold (brake exempt): (rule leak, rung 1) ada is exempt"]
    would = decision(ActionKind.CAP, disposition=Disposition.WOULD, reason="it leaks")
    assert told(record(would)) == ["would cap: (rule leak, rung 1) it leaks"]


QUIET = LoopStatus("act", None)


@pytest.mark.parametrize(
    ("about", "status", "text"),
    [
        (incident(state=IncidentState.CLOSED), QUIET, "Nothing: the incident is closed."),
        (incident(), replace(QUIET, paused="by ada since noon"), "actions are paused by ada since noon"),
        (incident(), replace(QUIET, breaker="4 of 20 jobs"), "the circuit breaker is open (4 of 20 jobs)"),
        (incident(), replace(QUIET, store_problem="disk full"), "until the database works again: disk full"),
        (incident(stale=True), QUIET, "until every node of the job reports again"),
        (incident(state=IncidentState.RECOVERING), QUIET, "The incident closes unless the problem returns"),
        (
            incident(),
            replace(QUIET, mode="observe"),
            "mode is observe: decisions are logged, no action is taken",
        ),
        (incident(), QUIET, "The policy's rules apply (`tidegauge policy show`). The policy's mode is act"),
    ],
)
def test_incidents_show_says_what_happens_next_and_who_can_change_it(
    about: Incident, status: LoopStatus, text: str
) -> None:
    assert text in incident_command.what_next(about, [], status)


def test_the_open_breaker_of_one_user_is_said_of_that_users_incidents() -> None:
    status = replace(QUIET, user_breakers=("the breaker of eve opened: 4 jobs, at noon",))
    held = record(decision(disposition=Disposition.WITHHELD, brake="user_breaker", reason="the breaker of eve opened"))
    others = record(
        decision(disposition=Disposition.WITHHELD, brake="user_breaker", reason="the breaker of bob opened")
    )
    assert "until `tidegauge policy resume`: the breaker of eve opened: 4 jobs, at noon." in (
        incident_command.what_next(incident(), [held], status)
    )
    assert "The policy's rules apply" in incident_command.what_next(incident(), [others], status)


def test_another_incidents_action_is_not_this_ones_next() -> None:
    assert "Under way" not in incident_command.what_next(incident(), [], STATUS)


def test_all_that_is_known_is_on_the_page_and_nothing_else() -> None:
    about = incident(
        IncidentCause.OUT_OF_MEMORY, findings=(finding(1, oom=oom_record()),), flaps=2, stale=True,
        worst_severity=Severity.CRITICAL, severity=Severity.WARNING, explanation="It was the cap.",
        bytes_per_step=None, seconds_to_oom=None, job_name=None, scheduler=None,
    )  # fmt: skip
    page = dict(incident_command.figures(about, now_s=time.time()))
    assert page["severity"] == "warning (peak: critical)"
    assert page["state"].startswith("open; returned 2 times during recovery; a node of the job is not reporting")
    assert page["explanation"] == "It was the cap."
    assert (page["job"], page["scheduler"]) == ("4711, attempt 0", "none")
    assert not {"growth", "runs out in", "reports"} & set(page)


def test_incidents_show_prints_line_and_holder_of_the_evidence(
    url: str, store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["incidents", "show", "1", "--api", url])
    assert "Evidence" not in capsys.readouterr().out
    told = store.incidents.story[-1]
    store.incidents.story.append(told._replace(incident=with_evidence(told.incident, [news()])))
    assert main(["incidents", "show", "1", "--api", url]) == 0
    shown = capsys.readouterr().out
    part = shown[shown.index("\nEvidence\n") : shown.index("\nWhat happened\n")].splitlines()
    assert "train.py:41 in step" in part[2]
    assert "Trainer.history (list, 412 items)" in part[2]
    assert part[3].strip() == "advice: `Trainer.history` keeps a tensor of each step: append `loss.item()`."
    assert part[4].strip().startswith("snapshot: node0:/var/lib/tidegauge/snapshots/lab/4711/0/rank-1/step-204-")
    assert "`tidegauge report 1`" in part[6]


def test_the_words_of_a_job_cannot_command_a_terminal() -> None:
    evil = news()._replace(brief=news().brief._replace(holder="\x1b]0;pwned\x07" + "x" * 9000, advice="\x1b[31mred"))
    about = with_evidence(incident(), [evil])
    texts = [text for _, text in incident_command.evidence_lines(about)]
    assert all(text.isprintable() and len(text) <= incident_command.MAX_SENTENCE_CHARS for text in texts)
    assert len(texts) > 2


def test_a_rank_in_a_pod_is_shown_with_it() -> None:
    inside, outside = finding(0, pod="team-a/train-0-x7"), finding(1)
    rows = incident_command.rank_rows(incident(findings=(inside, outside)))
    assert [row[1] for row in rows] == [f"team-a/train-0-x7 on {inside.hostname}", outside.hostname]
