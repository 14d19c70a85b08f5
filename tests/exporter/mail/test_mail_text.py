"""What owners read in a mail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from html_text import Page
from sample_views import NOW_S
from scheduler_values import decision, died_of_oom, record
from slack_stories import FOUND, closed, explained, leak, notify_decision, out_of_memory
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.incidents.actions import ActionKind, Outcome
from tidegauge_exporter.links import Links
from tidegauge_exporter.mail.html_parts import MailText
from tidegauge_exporter.mail.mail_text import evidence_letter, followup_letter, owner_letter
from tidegauge_exporter.messages.values import Story

LINKS = Links("https://grafana.example", "https://head.example")

LEAK = """\
Memory leak in your job 4711: out of memory 08:14\u201308:22 UTC

Rank 3 of job 4711 leaks 35.8 MiB per step since step 300; at this rate it runs out of memory in 14\u201322 min.

What Tidegauge does next, and when.

Live tensors accumulate: something keeps references from step to step. Usual suspects: lists of losses or outputs \
without .detach(), module hooks that store activations, caches without a bound.

To exempt this job from actions (replaces the job's comment):
    scontrol update JobId=4711 Comment=tidegauge:keep
To cancel it yourself, after saving what you need:
    scancel 4711

Dashboard: https://grafana.example/d/tidegauge-job?var-cluster=prod&var-job_id=4711&var-attempt=0&from=1799997300250\
&to=now
Job: https://head.example/job?job_id=4711&attempt=0&uid=1001
Report: https://head.example/report?incident=12
Keep my job running: https://head.example/runbooks#keep-my-job-running
Say whether it is a leak: https://head.example/grade?incident=12

-- \n\
Tidegauge \N{MIDDLE DOT} incident 12 \N{MIDDLE DOT} llama-70b-sft \N{MIDDLE DOT} cluster prod \N{MIDDLE DOT} \
figures from 08:00 UTC
"""


def of_slurm(story: Story, **changes: Any) -> Story:
    return replace(story, incident=replace(story.incident, **{"scheduler": "slurm", **changes}))


def letter(story: Story, *, has_plot: bool = False, links: Links = LINKS, cluster: str = "prod") -> MailText:
    asked = notify_decision(story, "What Tidegauge does next, and when.")
    return owner_letter(asked, story, cluster=cluster, links=links, now_unix_s=NOW_S, has_plot=has_plot)


def test_the_text_of_a_leak_is_exactly_this() -> None:
    assert letter(of_slurm(leak())).text == LEAK


def test_the_html_says_the_same_words() -> None:
    said = letter(of_slurm(leak()))
    seen = " ".join(Page(said.html).text.split())
    for part in LEAK.replace("-- \n", "").split("\n"):
        label, is_link, _ = part.strip().partition(": https://")
        assert " ".join((label if is_link else part).split()) in seen


def test_the_picture_is_in_the_html_only_if_there_is_one() -> None:
    assert 'src="cid:memory-plot"' in letter(leak(), has_plot=True).html
    assert "<img" not in letter(leak()).html


def test_all_mails_about_an_incident_have_one_subject() -> None:
    asked = record(decision(ActionKind.REQUEUE), Outcome.DONE, finished_s=NOW_S)
    assert letter(leak()).subject == "Memory leak in your job 4711 (incident 12 on prod)"
    assert letter(closed()).subject == letter(leak()).subject
    follow = followup_letter(asked, leak(), cluster="prod")
    assert follow.subject == "Re: Memory leak in your job 4711 (incident 12 on prod)"


def test_mail_followup_describes_an_action_in_one_line() -> None:
    asked = record(decision(ActionKind.REQUEUE), Outcome.DONE, finished_s=NOW_S, detail="slurm put it into its queue")
    said = followup_letter(asked, leak(), cluster="prod")
    assert said.text == (
        "\N{WHITE HEAVY CHECK MARK} 08:00 UTC: Requeued your job: it starts again. Slurm put it into its queue\n\n"
        "-- \nTidegauge, incident 12, cluster prod\n"
    )
    assert "Requeued your job: it starts again." in Page(said.html).text


@pytest.mark.parametrize(
    "story",
    [leak(), of_slurm(closed()), of_slurm(leak(), key=leak().incident.key._replace(
        job=leak().incident.key.job._replace(job_id="4711; rm -rf ~")
    ))],
)  # fmt: skip
def test_commands_are_only_shown_for_a_slurm_job_that_is_there(story: Story) -> None:
    assert "scancel" not in letter(story).text


def test_links_that_nobody_configured_are_left_out() -> None:
    said = letter(leak(), links=Links())
    assert "https://" not in said.text + said.html


def test_another_cause_has_another_subject() -> None:
    assert letter(out_of_memory()).subject == "Out of memory in your job 4711 (incident 15 on prod)"


def test_mail_with_later_evidence_stays_in_the_thread() -> None:
    said = evidence_letter(explained(), cluster="prod", links=Links())
    assert said.subject == f"Re: {letter(leak()).subject}"
    assert said.text.startswith(
        "Line found: train.py:41 in step, held by train.py: Trainer.history (list, 412 items); cause: tensors kept "
        "alive by Python references.\n\nRank 3 kept 1.0 GiB (35.8 MiB a step) in 30 steps, allocated at train.py:41"
    )
    assert "append `tensor.item()`" in Page(said.html).text


def test_evidence_that_was_there_before_is_in_the_first_mail() -> None:
    said = letter(explained())
    assert "append `tensor.item()`" in said.text
    assert "Usual suspects" not in said.text


HOSTILE = [
    "x\r\nBcc: everybody@example.org",
    "</pre><script>alert(1)</script>",
    '" onload="alert(1)',
    "a\nb\u2028c\x00\x1b[31m\u202e\u200b",
    "\ud800 lone",
    "x" * 100_000,
    "=?utf-8?q?evil?=",
    "{0} %s %(a)s",
]


def hostile(text: str) -> Story:
    told = leak().incident
    job = told.key.job._replace(job_id=text)
    worst = replace(told.findings[0], hostname=text)
    return replace(
        leak(),
        incident=replace(
            told, key=told.key._replace(job=job), user_name=text, job_name=text, scheduler=text, explanation=text,
            findings=(worst,), snapshots=(text,) * 5, reports=(text,),
            evidence=(FOUND._replace(line=CodeLine(text, 41, text), holder=text, advice=text),),
        ),
    )  # fmt: skip


def check(text: str) -> None:
    told = hostile(text)
    made = record(decision(ActionKind.CANCEL, reason=text, parameters={"text": text}), Outcome.FAILED, detail=text)
    asked = notify_decision(told, f"{text}\nand {text}")
    letters = [
        owner_letter(asked, told, cluster=text, links=Links(), now_unix_s=NOW_S, has_plot=True),
        followup_letter(made, told, cluster=text),
        evidence_letter(told, cluster=text, links=Links()),
    ]
    for said in letters:
        assert said.subject.isprintable()
        assert len(said.subject) <= 170
        assert len(said.text) < 12_000
        for line in said.text.splitlines():
            assert line.isprintable()
        usual = owner_letter(notify_decision(leak(), "a\nb"), leak(), cluster="c", links=Links(), now_unix_s=NOW_S,
                             has_plot=True)  # fmt: skip
        assert set(Page(said.html).tags) <= {*Page(usual.html).tags, "br", "pre"}
        assert Page(said.html).fetched in (["cid:memory-plot"], [])


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_mail_turns_no_job_text_into_a_header_line_or_markup(text: str) -> None:
    check(text)


@fewer(2)
@given(st.text(max_size=200))
def test_mail_turns_no_arbitrary_text_into_a_header_line_or_markup(text: str) -> None:
    check(text)


def test_the_mail_about_growth_that_ended_in_an_error_is_red_and_past() -> None:
    said = letter(Story(died_of_oom()))
    assert said.text.startswith("Your job 4711 crashed: CUDA OOM at step 3,816 on rank 1 (wanted 20.0 MiB")
    assert "It had leaked 12.0 MiB per step since step 40; the forecast of 07:59:32 UTC said 17\u201328 s." in said.text
    assert "runs out" not in said.text
    assert "border-left:5px solid #c9342b" in said.html
