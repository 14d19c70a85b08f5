"""Records of jobs that ended as a table, on the pages of jobs, history and one job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegauge.cluster.web.markup import bytes_text, job_link, name_text, share_bar, state_chip
from tidegauge.core.job_records.end_words import HOW, ran_s
from tidegauge.core.job_records.facts import used_share
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.units import format_duration
from tidegauge_exporter.reports.html_page import moment, table

BAD_ENDS: Final = frozenset({JobEnd.OOM, JobEnd.KILLED, JobEnd.FAILED})
_HEADS: Final = ("Ended", "How", "Job", "User", "Ran", "Ranks", "Peak reserved", "Of limit", "Worst state")


def records_table(records: Sequence[JobRecord]) -> str:
    """A row for each, as they come."""
    return table(_HEADS, map(_row, records), numbers=(4, 5, 6))


def end_text(record: JobRecord) -> str:
    """How it ended; a bad end has a mark."""
    if record.end is None:
        return "running"
    return f"{HOW[record.end]}{' !' if record.end in BAD_ENDS else ''}"


def _row(record: JobRecord) -> Sequence[str]:
    name = f"<small>{name_text(record.job_name)}</small>" if record.job_name != record.job.job_id else ""
    return (
        moment(record.ended_unix_s or record.updated_unix_s),
        end_text(record),
        job_link(record.job, record.array) + name,
        name_text(record.user_name),
        format_duration(ran_s(record)),
        f"{record.world_size:,}",
        bytes_text(record.fullest.reserved_bytes),
        share_bar(used_share(record.fullest)),
        state_chip(record.state, record.severity, has_steps=record.steps > 0),
    )
