"""The HTML report of one incident: a page that needs nothing beside itself, for whoever follows a link to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from tidegauge.core.actions import DecisionRecord
from tidegauge.core.incidents import ChangeKind, Incident, IncidentChange, IncidentState, RankFinding
from tidegauge.core.units import format_bytes, format_duration
from tidegauge.core.verdicts import Severity
from tidegauge.core.wording import CLOSURES, capitalised, change_in_words, hint, incident_sentence, list_ranks, rate
from tidegauge_exporter.html_page import lead, meta, moment, page, section
from tidegauge_exporter.incident_plot import incident_plot
from tidegauge_exporter.links import Links
from tidegauge_exporter.notify.values import Story
from tidegauge_exporter.rank_table import RankRow, rank_table
from tidegauge_exporter.slack.deeds import deed
from tidegauge_exporter.slack.headlines import NOUNS, as_of, owners_job, seconds_left
from tidegauge_exporter.slack.text import tidy, time_left
from tidegauge_exporter.slack.untrusted import tamed_story

MOST_LINES: Final = 200
"""Of the history, and of what was decided: the newest."""
LINKED_AROUND_S: Final = 1800.0
"""How much of the time before and after the incident a linked dashboard shows."""
LONGEST_PATH: Final = 400

_KEEP_RUNNING: Final = (
    "Tidegauge ends or changes a job only where the site's policy says so, and never one that is exempt. Its owner "
    "exempts it when it is started: <code>tidegauge run --no-actions</code>, or for a Ray job the metadata "
    "<code>tidegauge.actions: off</code>. At any time: on Kubernetes by the annotation <code>tidegauge.dev/actions: "
    "keep</code> of the workload, on Slurm by <code>tidegauge:keep</code> in the job's comment. Other jobs that run "
    "already are exempted by an admin, at once. An exempt job is still watched, and fails by itself if its memory runs "
    "out."
)


def render_incident(story: Story, *, cluster: str, links: Links, now_unix_s: float) -> str:
    """The page as of ``now_unix_s``. Texts that a job or a scheduler chose are made short and visible, and escaped."""
    told = tamed_story(story)
    incident = told.incident
    facts = [
        ("Incident", str(incident.number)),
        (
            "Job",
            incident.key.job.job_id + (f", attempt {incident.key.job.attempt}" if incident.key.job.attempt else ""),
        ),
        ("Name", incident.job_name),
        ("User", incident.user_name),
        ("Cluster", tidy(cluster, LONGEST_PATH)),
    ]
    parts = [
        meta(facts, made_unix_s=now_unix_s),
        _lead(incident, now_unix_s),
        _links(story.incident, cluster=cluster, links=links),
        _plot(told, now_unix_s),
        _ranks(incident),
        _deeds(told.decisions, is_open=incident.is_open),
        _history(told.history),
        _evidence(story.incident),
        _keep_running(links),
        "<footer>Made by Tidegauge. Times and rates are estimates; their ranges are given with them.</footer>",
    ]
    return page(f"{NOUNS[incident.key.cause]} in {owners_job(incident)} (incident {incident.number})", parts)


def _lead(incident: Incident, now_unix_s: float) -> str:
    stale = "A node of the job does not report: the figures are old, and nothing is done on them."
    return lead(
        incident_sentence(as_of(incident, now_unix_s)),
        tone=_tone(incident),
        remarks=[
            _standing(incident),
            stale if incident.stale else None,
            _ended(incident.explanation or ""),
            hint(incident.key.cause),
        ],
        figures=_figures(incident, now_unix_s),
    )


def _tone(incident: Incident) -> str:
    if incident.state is IncidentState.OPEN:
        return str(incident.severity.value)
    return "ok" if incident.state is IncidentState.CLOSED else str(Severity.NOTE.value)


def _standing(incident: Incident) -> str | None:
    """What the headline, which is about the alarm, does not say."""
    if incident.state is IncidentState.RECOVERING:
        return "It has stopped since, and the incident is closed if it does not come back for a while."
    if incident.state is IncidentState.CLOSED:
        how = f": {CLOSURES[incident.closure]}" if incident.closure is not None else ""
        return f"This incident is closed{how}. What is said here is as of the last alarm."
    return None


def _figures(incident: Incident, now_unix_s: float) -> list[tuple[str | None, str]]:
    left = seconds_left(incident, now_unix_s)
    end_s = now_unix_s if incident.closed_unix_s is None else incident.closed_unix_s
    return [
        (_state(incident), f"opened {moment(incident.opened_unix_s)}"),
        (None if left is None else time_left(left), "until out of memory"),
        (format_duration(max(end_s - incident.opened_unix_s, 0.0)), "open so far" if incident.is_open else "was open"),
        (capitalised(list_ranks(incident.ranks, common=incident.common)), f"of {incident.world_size:,} in the job"),
        (rate(incident.bytes_per_step), "growth per step"),
        (None if incident.grown_bytes is None else format_bytes(incident.grown_bytes), "gained since it began"),
        (None if incident.onset_step is None else f"{incident.onset_step:,}", "began at step"),
    ]


def _state(incident: Incident) -> str:
    now = incident.severity if incident.state is IncidentState.OPEN else incident.state
    worst = incident.worst_severity
    was_worse = worst is not None and worst.level > incident.severity.level
    return capitalised(now.value) + (f" (was {worst.value})" if worst is not None and was_worse else "")


def _links(incident: Incident, *, cluster: str, links: Links) -> str:
    """The dashboards over the time of the incident, where Grafana is configured; of an incident that is not tamed."""
    job, ended_s = incident.key.job, incident.closed_unix_s
    from_unix_s = incident.opened_unix_s - LINKED_AROUND_S
    to_unix_s = None if ended_s is None else ended_s + LINKED_AROUND_S
    addresses = [
        (
            "The job in Grafana",
            links.job(
                cluster=cluster, job_id=job.job_id, attempt=job.attempt, from_unix_s=from_unix_s, to_unix_s=to_unix_s
            ),
        )
    ]
    addresses += [
        (
            f"Rank {finding.rank} in Grafana",
            links.rank(
                cluster=cluster, job_id=job.job_id, attempt=job.attempt, rank=finding.rank, from_unix_s=from_unix_s,
                to_unix_s=to_unix_s,
            ),
        )
        for finding in incident.findings[:1]
    ]  # fmt: skip
    made = [_link(words, url) for words, url in addresses if url is not None]
    return f'<nav class="links">{" ".join(made)}</nav>' if made else ""


def _link(words: str, url: str) -> str:
    """Addresses begin with what an admin configured; one that is no web address is not made clickable."""
    if not url.startswith(("https://", "http://")):
        return escape(words)
    return f'<a href="{escape(url)}" rel="noreferrer">{escape(words)}</a>'


def _plot(story: Story, now_unix_s: float) -> str:
    if not story.incident.findings:
        return ""
    first = story.incident.findings[0]
    where = first.hostname if first.gpu is None else f"{first.hostname}, GPU {first.gpu}"
    return section(f"GPU memory of rank {first.rank} ({where})", incident_plot(story, now_unix_s=now_unix_s))


def _ranks(incident: Incident) -> str:
    if not incident.findings:
        return ""
    heading = "Ranks concerned" if incident.state is IncidentState.OPEN else "Ranks concerned, at the last alarm"
    return section(heading, rank_table([_row(finding) for finding in incident.findings]))


def _row(finding: RankFinding) -> RankRow:
    return RankRow(
        rank=finding.rank,
        hostname=finding.hostname,
        gpu=finding.gpu,
        gpu_name=None,
        uuid=finding.uuid,
        verdict=finding.verdict,
        allocated_bytes=finding.allocated_bytes,
        reserved_bytes=finding.reserved_bytes,
        nontorch_bytes=finding.nontorch_bytes,
        limit_bytes=finding.limit_bytes,
        oom=finding.oom,
    )


def _deeds(records: Sequence[DecisionRecord], *, is_open: bool) -> str:
    """What was done or would have been, oldest first."""
    if not records:
        return section("What was done", f'<p class="muted">Nothing{" so far" if is_open else ""}.</p>')
    lines = []
    for record in records[-MOST_LINES:]:
        done, decision = deed(record), record.decision
        origin = f"rule {decision.rule}, rung {decision.rung + 1}"
        why = origin if done.remark == decision.reason else f"{origin}: {decision.reason}"
        lines.append((done.at_unix_s, f"{_ended(done.sentence)} {_ended(done.remark)}".rstrip(), why))
    return section("What was done", _timed(lines, left_out=len(records) - len(lines)))


def _history(changes: Sequence[IncidentChange]) -> str:
    """What happened to the incident, oldest first. New figures alone are not worth a line."""
    told = [change for change in changes if change.kind is not ChangeKind.UPDATED]
    if not told:
        return ""
    shown = told[-MOST_LINES:]
    lines = [(change.at_unix_s, _ended(change_in_words(change)), "") for change in shown]
    return section("What happened", _timed(lines, left_out=len(told) - len(lines)))


def _timed(lines: Iterable[tuple[float, str, str]], *, left_out: int) -> str:
    """Time, what happened, and why."""
    rows = "\n".join(
        f"<tr><td>{moment(at_unix_s)}</td><td>{escape(text)}{f'<small>{escape(why)}</small>' if why else ''}</td></tr>"
        for at_unix_s, text, why in lines
    )
    more = f'<p class="muted">{left_out:,} earlier lines are left out.</p>\n' if left_out else ""
    return f'{more}<div class="scroll"><table class="timed">\n{rows}\n</table></div>'


def _ended(text: str) -> str:
    """As a sentence."""
    return capitalised(text) + ("" if not text or text.endswith((".", "!", "?", "\u2026")) else ".")


def _evidence(incident: Incident) -> str:
    """Where snapshots and reports lie; of an incident that is not tamed."""
    paths = [tidy(path, LONGEST_PATH) for path in (*incident.snapshots, *incident.reports)]
    items = "".join(f"<li><code>{escape(path)}</code></li>" for path in paths)
    return section("Evidence", f"<ul>{items}</ul>") if items else ""


def _keep_running(links: Links) -> str:
    url = links.exemption()
    more = f" {_link('More about exemptions', url)}" if url is not None else ""
    return section("How to keep the job running", f"<p>{_KEEP_RUNNING}{more}</p>")
