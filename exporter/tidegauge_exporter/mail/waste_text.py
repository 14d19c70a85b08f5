"""The mail to a user on GPU memory that their jobs did not use, and the report on such mails to admins."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from tidegauge.core.jobs.right_size import SizedUsage
from tidegauge.core.jobs.waste import HOUR_S, UserWaste
from tidegauge.core.units import format_duration, format_last
from tidegauge_exporter.mail.html_parts import (
    CALM_COLOUR,
    MailText,
    heading,
    page,
    paragraph,
    plain_text,
    small_lines,
)
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import MAX_NAME_CHARS

MAX_JOBS: Final = 10
"""Named in one mail; the others are counted."""
GIB: Final = 1 << 30
_PRE: Final = (
    "margin:0 0 12px;padding:8px 10px;background:#f1f3f5;border-radius:4px;font:13px/1.4 Menlo,Consolas,monospace"
)


class WasteMails(NamedTuple):
    """What all mails of a round have in common."""

    cluster: str
    span_s: float
    """Time within which the jobs ended."""
    every_s: float
    """No user gets two mails within it."""
    greeting: str


def waste_letter(waste: UserWaste, mails: WasteMails) -> MailText:
    cluster, span = tidy(mails.cluster, MAX_NAME_CHARS), format_last(mails.span_s)
    count = len(waste.jobs)
    jobs = "one of your jobs" if count == 1 else f"{count} of your jobs"
    unused = f"{gib_hours(waste.unused_byte_seconds)} of GPU memory unused"
    lead = (
        f"In the last {span} {jobs} on {cluster} needed {waste.used_share:.0%} of the GPU memory that they had, and "
        f"left {unused}. Below is what they had, what they needed, and what would have done."
    )
    why = (
        "A job that asks for less often starts sooner, and leaves the GPU to those who need it. If you know why the "
        "next run needs more, ask for that: these are the figures of runs that ended."
    )
    see = f"To see more: tidegauge efficiency --user {tidy(waste.user_name, MAX_NAME_CHARS)}"
    reply = (
        "Questions, or no more of these mails? Reply to this mail. "
        f"You get one at most every {format_duration(mails.every_s)}."
    )
    shown = [_job(job) for job in waste.jobs[:MAX_JOBS]]
    more = f"And {count - MAX_JOBS} more jobs." if count > MAX_JOBS else ""
    greeting = tidy(mails.greeting.replace("{user}", waste.user_name), MAX_NAME_CHARS)
    footer = f"Tidegauge, cluster {cluster}"
    subject = f"Your jobs on {cluster} left {unused}"
    text = [greeting, lead, *(f"{title}\n    {advice}" for title, advice in shown), more, why, see, reply]
    html = [
        heading(f"Your jobs left {unused}", CALM_COLOUR),
        paragraph(greeting) if greeting else "",
        paragraph(lead),
        *(f'<p style="margin:0 0 12px"><b>{escape(title)}</b><br>{escape(advice)}</p>' for title, advice in shown),
        *map(paragraph, filter(None, [more, why, see, reply])),
        small_lines([footer]),
    ]
    return MailText(subject, plain_text(text, footer), page(html))


def report_letter(lines: Sequence[str], mails: WasteMails, *, sent: int, failed: int) -> MailText:
    """``lines``: a table in fixed width."""
    cluster, span = tidy(mails.cluster, MAX_NAME_CHARS), format_last(mails.span_s)
    failures = f", {failed} failed" if failed else ""
    subject = f"Tidegauge on {cluster}: {sent} {'mail' if sent == 1 else 'mails'} on unused GPU memory sent{failures}"
    lead = f"Users whose jobs of the last {span} could have asked for less GPU memory, and what became of their mail:"
    table = [tidy_row(line) for line in lines]
    footer = f"Tidegauge, cluster {cluster}; setting efficiency_mail_report"
    html = [
        paragraph(lead),
        f'<pre style="{_PRE}">{escape(chr(10).join(table))}</pre>',
        small_lines([footer]),
    ]
    return MailText(subject, plain_text([lead, "\n".join(table)], footer), page(html))


def tidy_row(line: str) -> str:
    """Of a table: without what is invisible, and with its spaces."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _job(job: SizedUsage) -> tuple[str, str]:
    usage = job.usage
    name = tidy(usage.name, MAX_NAME_CHARS) or "(no name)"
    share = usage.needed_byte_seconds / usage.had_byte_seconds
    runs = "1 run" if usage.runs == 1 else f"{usage.runs} runs"
    title = (
        f"{name}: {runs}, {usage.gpu_seconds / HOUR_S:,.0f} GPU-hours, {share:.0%} needed, "
        f"{gib_hours(usage.unused_byte_seconds)} unused"
    )
    return title, f"{job.advice}."


def gib_hours(byte_seconds: float) -> str:
    return f"{byte_seconds / HOUR_S / GIB:,.0f} GiB-hours"
