from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from html_text import Page
from sample_views import GIB, LEAK, MIB, NOW_S
from scheduler_values import decision, died_of_oom, finding, incident, oom_record, record
from slack_stories import FOUND
from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, Closure, IncidentCause, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, Disposition, Outcome
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import OK, Band, Severity
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.reports.html_page import page
from tidegauge_exporter.reports.incident_sections import MAX_LINES, MAX_ROWS
from tidegauge_exporter.reports.report import report_parts
from tidegauge_exporter.reports.report_content import incident_content

LINKS = Links(grafana_url="https://grafana.example", service_url="https://tidegauge.example")


def memory(minutes: int = 60, rate_bytes_per_s: int = 11 * MIB) -> tuple[MemoryPoint, ...]:
    """A rank that has grown for the last three quarters of the time, one point a minute."""
    return tuple(
        MemoryPoint(
            NOW_S - 60.0 * (minutes - minute),
            minute * 10,
            24 * GIB + max(minute - minutes // 4, 0) * 60 * rate_bytes_per_s,
            28 * GIB + max(minute - minutes // 4, 0) * 60 * rate_bytes_per_s,
            900 * MIB,
        )
        for minute in range(1, minutes + 1)
    )


def render(story: Story, links: Links = LINKS, now_unix_s: float = NOW_S, cluster: str = "lab") -> str:
    content = incident_content(story, made_unix_s=now_unix_s, keep_snapshots_s=9e9, cluster=cluster, links=links)
    title, parts, _, _ = report_parts(content)
    return page(title, parts)


def story(**changes: Any) -> Story:
    """Job 4711's rank 1 leaks; its owner was told, saving its state was held back, ending it is only considered."""
    about = incident(number=12, onset_step=150, **changes)
    return Story(
        about,
        history=(
            IncidentChange(ChangeKind.OPENED, NOW_S - 600.0, replace(about, severity=Severity.WARNING)),
            IncidentChange(ChangeKind.UPDATED, NOW_S - 300.0, about),
            IncidentChange(ChangeKind.ESCALATED, NOW_S - 240.0, about),
        ),
        decisions=(
            told(ActionKind.NOTIFY, 1, outcome=Outcome.DONE, detail="written to the job's terminal"),
            told(ActionKind.CHECKPOINT, 2, disposition=Disposition.WITHHELD, reason="actions are paused"),
            told(ActionKind.REQUEUE, 3, disposition=Disposition.WOULD, mode="observe"),
        ),
        memory=memory(),
    )


def told(
    action: ActionKind, rung: int, outcome: Outcome | None = None, detail: str | None = None, **changes: Any
) -> DecisionRecord:
    made = decision(action, decision_id=f"1:leak:{rung}:1", rung=rung - 1, decided_s=NOW_S - 500.0 + rung, **changes)
    return record(made, outcome, detail=detail)


def test_the_page_says_what_goes_on_since_when_and_when_it_ends() -> None:
    words = Page(render(story())).text
    assert "Rank 1 of job 4711 leaks 12.0 MiB per step since step 150; at this rate it runs out of memory in" in words
    for fact in ("Critical", "14\u201322 min", "960.0 MiB", "2027-01-15 07:50 UTC", "10 min", "of 2 in the job"):
        assert fact in words
    assert "Live tensors accumulate" in words


def test_the_page_says_what_no_earlier_run_did() -> None:
    assert (
        "Its peak is beyond those of 12 earlier runs."
        in Page(render(story(change="its peak is beyond those of 12 earlier runs"))).text
    )


def test_time_goes_on_after_the_last_figures() -> None:
    words = Page(render(story(), now_unix_s=NOW_S + 600.0)).text
    assert "runs out of memory in 4\u201312 min" in words


def test_the_page_needs_nothing_beside_itself() -> None:
    html = render(story())
    page = Page(html)
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe", "form"} & set(page.tags)
    assert not re.search(r"url\(|@import|style=", html)


def test_dashboards_of_the_time_of_the_incident_are_linked() -> None:
    page = Page(render(story()))
    job, rank, question, act, exemption = page.links
    assert job.startswith("https://grafana.example/d/tidegauge-job?var-cluster=lab&var-job_id=4711&var-attempt=0&from=")
    assert f"from={int((NOW_S - 2400.0) * 1000)}&to=now" in job
    assert "/d/tidegauge-rank?" in rank
    assert "var-rank=1" in rank
    assert question == f"https://tidegauge.example/grade?incident={story().incident.number}"
    assert act == f"https://tidegauge.example/act?incident={story().incident.number}"
    assert exemption == "https://tidegauge.example/runbooks#keep-my-job-running"
    for way in ("tidegauge run --no-actions", "tidegauge.dev/actions: keep", "tidegauge:keep"):
        assert way in page.text


def test_incident_report_links_only_to_configured_addresses() -> None:
    assert Page(render(story(), Links())).links == []
    assert Page(render(story(), Links(grafana_url="javascript:alert(1)//"))).links == []


def test_incident_report_describes_actions_done_on_hold_and_considered() -> None:
    words = Page(render(story())).text
    assert "Written to the job's terminal" in words
    assert "Checkpoint on hold: actions are paused." in words
    assert "Mode observe, no action taken: the policy would requeue the job." in words
    assert "rule leak, rung 3: rank 1 of job 4711 leaks 12 MiB a step" in words


def test_incident_report_without_actions_says_none_so_far() -> None:
    assert "None so far." in Page(render(replace(story(), decisions=()))).words


def test_the_history_is_told_without_what_only_tells_new_figures() -> None:
    words = Page(render(story())).text
    assert "Opened, severity warning: rank 1, 12.0 MiB per step" in words
    assert "Severity rose to critical" in words
    assert "New figures" not in words


def test_long_stories_are_cut_and_say_so() -> None:
    one = story()
    changes = tuple(IncidentChange(ChangeKind.REOPENED, NOW_S + n, one.incident) for n in range(MAX_LINES + 7))
    decisions = tuple(told(ActionKind.NOTIFY, n + 1, Outcome.DONE) for n in range(MAX_LINES + 9))
    words = Page(render(replace(one, history=changes, decisions=decisions))).words
    assert "7 earlier entries not shown." in words
    assert "9 earlier entries not shown." in words
    assert sum(text.startswith("Reopened") for text in words) == MAX_LINES


def test_the_plot_shows_the_layers_the_limit_and_the_forecast() -> None:
    html = render(story())
    words = Page(html).words
    assert {"live tensors", "outside PyTorch", "limit 80.0 GiB", "growth begins", "incident opened"} <= set(words)
    assert 'class="fan"' in html
    assert 'class="area allocated grows"' in html
    assert "GPU memory of rank 1 (node0, GPU 1)" in words


def test_without_an_end_in_sight_there_is_no_forecast() -> None:
    for calm in (
        story(seconds_to_oom=None),
        story(seconds_to_oom=Band(math.inf, math.inf, math.inf)),
        story(state=IncidentState.RECOVERING, recovering_since_unix_s=NOW_S - 30.0),
    ):
        html = render(calm)
        assert 'class="fan"' not in html
        assert "until OOM" not in html


def test_readings_that_nobody_has_any_more_are_said_to_be_missing() -> None:
    assert "No readings: the service has none of this rank." in Page(render(replace(story(), memory=()))).text
    host = replace(story(), incident=incident(IncidentCause.HOST_MEMORY))
    assert "No chart: host memory grows, not GPU memory." in Page(render(host)).text


def test_the_ranks_are_listed_worst_first_and_64_at_most() -> None:
    findings = tuple(finding(rank) for rank in (9, *range(10, 79)))
    page = Page(render(story(findings=findings, world_size=128)))
    cells = [word for word in page.words if re.fullmatch(r"node\d+, GPU \d", word)]
    assert len(cells) == MAX_ROWS
    assert cells[0] == "node1, GPU 1"
    assert "6 more ranks not shown." in page.words


def test_ranks_that_found_no_place_in_the_incident_are_counted() -> None:
    page = Page(render(story(findings=(finding(1), finding(2)), ranks_left_out=1980, world_size=4000)))
    assert "Rank 1, 2 and 1980 more" in page.text


def test_an_out_of_memory_says_what_was_wanted_and_why_it_failed() -> None:
    oom = finding(3, verdict=OK, oom=oom_record(at_unix_s=NOW_S - 300.0))
    about = incident(
        IncidentCause.OUT_OF_MEMORY, findings=(oom,), bytes_per_step=None, seconds_to_oom=None, onset_step=None,
        grown_bytes=None, explanation="the cache was not the cause",
    )  # fmt: skip
    words = Page(render(Story(about, memory=memory()))).words
    assert "Rank 3 of job 4711 ran out of memory at step 200: wanted 512.0 MiB, 200.0 MiB free." in words
    assert "The cache was not the cause." in words
    assert "512.0 MiB requested, 200.0 MiB free" in words
    assert "out of memory" in words
    assert "Growth per step" not in words


def test_a_closed_incident_says_why_and_is_no_alarm() -> None:
    over = story(state=IncidentState.CLOSED, closure=Closure.RECOVERED, closed_unix_s=NOW_S - 60.0)
    html = render(over)
    assert "This incident is closed: it stopped and did not come back." in Page(html).text
    assert 'class="lead tone-ok"' in html
    assert f"to={int((NOW_S + 1740.0) * 1000)}" in Page(html).links[0]


def test_old_figures_are_said_to_be_old() -> None:
    assert "A node of this job is not reporting: these figures are stale" in Page(render(story(stale=True))).text


def test_a_severity_that_fell_says_what_it_was() -> None:
    assert "Warning (was critical)" in Page(render(story(severity=Severity.WARNING))).words


def test_evidence_is_named_in_full() -> None:
    paths = tuple(f"/srv/snapshots/4711/{index}.pickle" for index in range(7))
    words = Page(render(story(snapshots=paths))).words
    assert set(paths) <= set(words)


def test_line_holder_cause_and_advice_are_on_the_page() -> None:
    html = render(story(evidence=(FOUND,)))
    page = Page(html)
    assert "append <code>tensor.item()</code> where a number is enough" in html
    assert "Usual suspects" not in page.text
    for cell in (
        "train.py:41 in step",
        "1.0 GiB in 30 steps",
        "train.py: Trainer.history (list, 412 items) -> Tensor[8,286,4096] float32",
        "Tensors kept alive by Python references",
        "two independent lines of evidence agree",
    ):
        assert cell in page.words
    assert "tidegauge report 12" in page.text


def test_incident_report_says_unknown_for_missing_evidence() -> None:
    nothing = EvidenceBrief("auto-1", 1, NOW_S)
    page = Page(render(story(evidence=(nothing,))))
    assert page.words.count("unknown") == 3
    assert "lists of losses" in page.text


EVIL = "<script>alert(1)</script>\"'&</title></style>\u202e"


def hostile(text: str) -> Story:
    about = incident(
        job=JobKey(text, 1, 1001), user_name=text, job_name=text, findings=(finding(0, hostname=text),),
        explanation=text, snapshots=(text,), reports=(text,), scheduler=text,
        evidence=(FOUND._replace(line=CodeLine(text, 41, text), holder=text, advice=text),),
    )  # fmt: skip
    made = decision(incident=about, reason=text, rule=text, brake=text)
    return Story(
        about,
        (IncidentChange(ChangeKind.OPENED, NOW_S, about),),
        (record(made, Outcome.FAILED, detail=text), record(replace(made, disposition=Disposition.WITHHELD))),
        memory(),
    )


def test_incident_report_escapes_hostile_text() -> None:
    html = render(hostile(EVIL), cluster=EVIL)
    page = Page(html)
    assert "script" not in page.tags
    assert page.tags.count("title") == 1 + len(re.findall("<title>", html.partition("<svg")[2]))
    assert page.tags.count("style") == 1
    assert page.text.count("<script>alert(1)</script>") >= 10
    assert "\u202e" not in html
    assert all(link.startswith("https://") for link in page.links)


@given(st.text(st.characters(codec=None), max_size=80))
def test_any_text_gives_the_same_page_in_its_place(text: str) -> None:
    html = render(hostile(text))
    assert Page(html).tags.count("section") == Page(render(hostile("plain"))).tags.count("section") or not text.strip()
    html.encode()


@pytest.mark.parametrize("cause", IncidentCause)
@pytest.mark.parametrize("state", IncidentState)
def test_every_cause_in_every_state_has_a_page(cause: IncidentCause, state: IncidentState) -> None:
    bare = incident(
        cause, state=state, findings=(finding(0, verdict=OK, gpu=None, uuid=None, limit_bytes=None),),
        bytes_per_step=None, seconds_to_oom=None, onset_step=None, grown_bytes=None, worst_severity=None,
    )  # fmt: skip
    for told_of in (bare, replace(bare, findings=()), replace(bare, findings=(finding(0, verdict=LEAK),))):
        assert "job 4711" in Page(render(Story(told_of, memory=memory()))).text


def test_the_page_of_growth_that_ended_in_an_error_is_red_and_past() -> None:
    page = render(Story(died_of_oom()))
    assert '<section class="lead tone-critical">' in page
    words = Page(page).text
    assert "Rank 1 of job 4711 ran out of GPU memory at 08:00:00 UTC (step 3,816), 28 s after the first fore" in words
    assert "Ran out of memory" in words
    assert "Trying again would get as far again." in words
    for future in ("runs out", "OOM in", "until OOM", "is closed"):
        assert future not in words


def test_the_page_of_growth_that_ended_in_an_error_tells_the_whole_story_first() -> None:
    saved = told(ActionKind.CHECKPOINT, 1, outcome=Outcome.NO_PROOF)
    page = render(Story(died_of_oom(evidence=(FOUND,)), decisions=(saved,)))
    lead = " ".join(Page(page[page.index('<section class="lead') : page.index("</section>")]).text.split())
    for part in (
        "Cause. ", "train.py:41", "Error. Rank 1, step 3816: live tensors grew. Trying again would get as far again.",
        "Forecast. Made at 07:59:32 UTC, 28 s before the error: 17\u201328 s; it was right.",
        "Evidence. The line that allocates, what holds it.", "What was done. Checkpoint: not proven in time.",
        "What was missing. ", "Next step. ", "append tensor.item()",
    ):  # fmt: skip
        assert part in lead


def test_the_page_of_growth_that_ended_in_an_error_links_to_its_incident() -> None:
    page = render(Story(died_of_oom()))
    assert "Ended in incident 2 (out_of_memory)" in Page(page).text
    assert 'href="https://tidegauge.example/report?incident=2"' in page


def test_chart_of_growth_that_ran_out_of_memory_says_so_and_of_another_that_it_was_closed() -> None:
    ended = {"state": IncidentState.CLOSED, "closed_unix_s": NOW_S}
    recovered = render(story(**ended, closure=Closure.RECOVERED))
    assert ">closed</text>" in recovered
    died = render(replace(story(), incident=died_of_oom()))
    assert ">out of memory</text>" in died
    assert ">closed</text>" not in died
    assert ">stopped</text>" not in died + recovered
