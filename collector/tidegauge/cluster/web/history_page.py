"""The page of jobs that ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from tidegauge.cluster.api.record_api import EndedJobPage
from tidegauge.cluster.web.markup import choice, filter_form, search_field
from tidegauge.cluster.web.records import records_table
from tidegauge.core.job_records.end_words import HOW
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.units import format_count
from tidegauge_exporter.reports.html_page import lead, muted, section

DAY_S: Final = 86_400
SPANS: Final[Mapping[str, str]] = {"1": "day", "7": "7 days", "30": "30 days", "90": "90 days"}
DAYS: Final = "30"
ENDS: Final[Mapping[str, str]] = {"": "in any way", **{end.value: HOW[end] for end in JobEnd}}


class HistoryAsked(NamedTuple):
    """What the viewer filters by; empty: nothing."""

    user: str = ""
    name: str = ""
    account: str = ""
    ended: str = ""
    days: str = DAYS


def history_page(found: EndedJobPage, asked: HistoryAsked) -> list[str]:
    """The sections of the page."""
    form = filter_form(
        search_field("name", "Name (* for any characters)", asked.name),
        "" if found.seen_as else search_field("user", "User", asked.user),
        search_field("account", "Account", asked.account),
        choice("ended", "Ended", ENDS, asked.ended),
        choice("days", "In the last", SPANS, asked.days),
    )
    ooms = sum(record.end is JobEnd.OOM for record in found.jobs)
    sentence = f"{format_count(len(found.jobs) + found.left_out, 'job')} ended in the last {SPANS[asked.days]}."
    figures = [(f"{ooms:,}", "of the shown ones by OOM")] if found.jobs else []
    rows = records_table(found.jobs) if found.jobs else muted("No job on record fits.")
    more = f"{found.left_out:,} more ended before these: shorten the time, or `tidegauge history --limit 1000`."
    return [lead(sentence, tone="note", figures=figures), section("Jobs that ended", form, rows,
            muted(more) if found.left_out else "")]  # fmt: skip
