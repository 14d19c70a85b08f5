"""The page of the policy: what is done, what would be done, what is on hold, and why."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tidegauge.cluster.web.markup import facts_list, health_chip, incident_link, job_link, name_text
from tidegauge.core.incidents.actions import DecisionRecord, Disposition, LoopStatus
from tidegauge.core.incidents.wording import MODE_WORDS, capitalised, name_job
from tidegauge_exporter.messages.action_text import deed
from tidegauge_exporter.messages.untrusted import tamed_record
from tidegauge_exporter.reports.html_page import inline, lead, moment, muted, section, table

DAYS: Final = 7
MAX_DECISIONS: Final = 200
_DEFAULT: Final = "default (`tidegauge policy show --default` prints it)"
_HEADS: Final = ("Decided", "Incident", "Job", "User", "Action", "Why")


def policy_page(status: LoopStatus, decisions: Sequence[DecisionRecord], *, left_out: int) -> list[str]:
    """The sections of the page; ``decisions`` are oldest first."""
    problems = [
        *_problem("Policy file", status.policy_problem),
        *_problem("Database", status.store_problem),
        *_problem("Records", status.records_problem),
        *(part for name, why in sorted(status.scheduler_problems.items()) for part in _problem(name, why)),
    ]
    facts = [
        ("Policy", name_text(status.policy_file) if status.policy_file else inline(_DEFAULT)),
        ("Actions", "not paused" if status.paused is None else health_chip(f"paused {status.paused}", is_well=False)),
        ("Circuit breaker", _breakers(status)),
        ("Open incidents", f"{status.incidents_open:,}"),
        *((f"Notifier {who}", health_chip(how, is_well=how == "ok")) for who, how in sorted(status.telling.items())),
        *problems,
    ]  # fmt: skip
    trouble = [
        *(["actions paused"] if status.paused is not None else []),
        *(["circuit breaker open"] if status.breaker is not None else []),
        *(f"{name} problem" for name, _ in problems),
    ]
    sentence = f"Mode {status.mode}: {MODE_WORDS[status.mode]}."
    if trouble:
        sentence += f" Needs attention: {', '.join(trouble)}."
    newest = list(reversed(decisions))
    waiting = [one for one in newest if one.decision.disposition is not Disposition.DO]
    done = [one for one in newest if one.decision.disposition is Disposition.DO]
    return [
        lead(sentence, tone="warning" if trouble else "note"),
        section("State", facts_list(facts)),
        section("In progress", _under_way(status)),
        section(f"Would be done, or on hold, in {DAYS} days", _decisions(waiting)),
        section(f"Done in {DAYS} days", _decisions(done)),
        muted(f"{left_out:,} older decisions not shown: `tidegauge policy log`.") if left_out else "",
    ]


def _problem(name: str, why: str | None) -> list[tuple[str, str]]:
    return [] if why is None else [(name, health_chip(why, is_well=False))]


def _breakers(status: LoopStatus) -> str:
    opened = [why for why in (status.breaker, *status.user_breakers) if why is not None]
    return "<br>".join(health_chip(f"open: {why}", is_well=False) for why in opened) or "closed"


def _under_way(status: LoopStatus) -> str:
    if not status.under_way:
        return ""
    rows = [
        (moment(one.since_s), escape(one.action.value), escape(name_job(one.job)), escape(one.what))
        for one in status.under_way
    ]
    return table(("Since", "Action", "Job", "State"), rows)


def _decisions(records: Sequence[DecisionRecord]) -> str:
    return table(_HEADS, map(_row, records)) if records else muted("None.")


def _row(record: DecisionRecord) -> Sequence[str]:
    told = tamed_record(record)
    decision, words = told.decision, deed(told)
    remark = f"<small>{escape(words.remark)}</small>" if words.remark else ""
    return (
        moment(decision.decided_s),
        incident_link(decision.incident.number),
        job_link(record.decision.target.job, group_name=decision.called.group),
        name_text(decision.incident.user_name),
        f"{escape(words.sentence)}.{remark}",
        f"{escape(capitalised(decision.reason))}<small>rule {escape(decision.rule)}, rung {decision.rung + 1}</small>",
    )
