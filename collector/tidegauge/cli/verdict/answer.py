"""The verdict on a job in words and as a report, from what a ``Judge`` knows."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidegauge.cli.errors import CommandError
from tidegauge.cli.jobs.incidents import MAX_SENTENCE_CHARS
from tidegauge.cli.output import write_output
from tidegauge.core.evidence.words import brief_sentences, end_words
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.wording import name_ranks, rank_place
from tidegauge.core.job_records.record import JobEnd, end_of, fullness_of
from tidegauge.core.jobs.right_size import MIN_RUN_S, GpuUsage, advice
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.text import one_line
from tidegauge.core.units import format_band, format_bytes, format_count
from tidegauge.core.verdicts import LeakState, Verdict, state_word
from tidegauge.core.views import RankView
from tidegauge.core.wire import to_wire

if TYPE_CHECKING:
    from tidegauge.cli.verdict.judge import Found, Judge
    from tidegauge_exporter.reports.report_content import ReportContent

MAX_RANKS = 8
"""Growing ranks with a line each."""
MAX_CATEGORIES = 4
"""Of a memory profile in one line."""
ENDED_BY_OOM = "ended by OOM"
NO_EVIDENCE = (
    "  No line and holder: there was no evidence by the end; it needs level auto and some 150 steps, more where they "
    "are short"
)
NO_STEPS = "  Without steps, growth is judged over minutes and has no line: call `tidegauge.step()` once in each step"


class JobAnswer(NamedTuple):
    """What was found out about one job."""

    ranks: tuple[RankView, ...]
    """The one to look at first first."""
    found: Mapping[ProcessId, Found]
    memory: Mapping[ProcessId, tuple[MemoryPoint, ...]]

    @property
    def growing(self) -> tuple[RankView, ...]:
        return tuple(rank for rank in self.ranks if rank.verdict.state is not LeakState.OK)


def answer_of(judge: Judge) -> JobAnswer:
    from tidegauge.cluster.coordinator.grouping import look_first

    ranks = tuple(sorted(judge.ranks(), key=look_first))
    return JobAnswer(ranks, judge.found(), {rank.process: judge.memory(rank) for rank in ranks})


def answer_lines(answer: JobAnswer) -> list[str]:
    """A line for each growing rank, with its evidence below, and one for those that are alike; none without ranks."""
    lines: list[str] = []
    growing = answer.growing
    for rank in growing[:MAX_RANKS]:
        found = answer.found.get(rank.process)
        lines += rank_lines(rank, found)
        if found is None:
            lines.append(NO_EVIDENCE if rank.step else NO_STEPS)
    if len(growing) > MAX_RANKS:
        lines.append(f"{name_ranks([int(rank.identity.rank) for rank in growing[MAX_RANKS:]])} grow as well")
    others = [rank for rank in answer.ranks if rank.verdict.state is LeakState.OK]
    for group in sorted({rank.group for rank in others}):
        if out := [rank for rank in others if rank.group == group and _ended_by_oom(rank)]:
            lines.append(_of_alike(out, ENDED_BY_OOM))
    healthy = [rank for rank in others if not _ended_by_oom(rank)]
    for group in sorted({rank.group for rank in healthy}):
        for has_steps in (True, False):
            alike = [rank for rank in healthy if (rank.group, rank.step > 0) == (group, has_steps)]
            if alike:
                lines += [_healthy(alike), *[NO_STEPS] * (not has_steps)]
    return lines


def figure_lines(
    ranks: Sequence[RankView], *, job_id: str, ran_s: float, page: Callable[[JobKey], str | None] = lambda _: None
) -> list[str]:
    """What a job used, where a service judges it: a line for each group of ranks, what could be asked for instead, and
    where the rest is; none without ranks. ``page`` gives the address of a job's web page, if it is known."""
    if not ranks:
        return []
    groups = sorted({rank.group for rank in ranks})
    lines = [_of_alike([rank for rank in ranks if rank.group == group]) for group in groups]
    attempt = max(rank.identity.restarts for rank in ranks)
    if attempt:
        lines[0] = f"attempt {attempt}: {lines[0]}"
    what = "attempts" if attempt else "of it"
    url = page(JobKey(job_id, max(rank.identity.attempt for rank in ranks), ranks[0].uid))
    more = f"`tidegauge job {shlex.quote(job_id)}` has all {what}" + (f"; web page: {url}" if url else "")
    return [*lines, *size_lines(ranks, ran_s=ran_s), more]


def size_lines(ranks: Sequence[RankView], *, ran_s: float) -> list[str]:
    """What the next run could ask for, in a line; none after a short run, an OOM, or where the GPUs were right."""
    limited = [rank for rank in ranks if rank.limit_bytes]
    if not limited or ran_s < MIN_RUN_S or any(rank.last_oom is not None for rank in ranks):
        return []
    fullest = max(limited, key=fullness_of)
    usage = GpuUsage.of_run(
        gpus=len({rank.uuid or rank.process for rank in ranks}), ran_s=ran_s, limit_bytes=fullest.limit_bytes or 0,
        gpu_bytes=fullest.gpu_bytes or 0, reserved_bytes=fullest.highest_reserved_bytes,
        nontorch_bytes=fullest.nontorch_bytes,
    )  # fmt: skip
    told = advice(usage)
    return [] if told is None else [f"this job {told}"]


def profile_lines(profiles: Mapping[ProcessId, RankProfile], ranks: Sequence[RankView]) -> list[str]:
    """A line on the fullest of the ranks that have a memory profile; none where no rank has one."""
    profiled = [(rank, profiles[rank.process]) for rank in ranks if rank.process in profiles]
    if not profiled:
        return []
    rank, profile = max(profiled, key=lambda one: one[1].allocated_bytes)
    largest = sorted(profile.by_category.items(), key=lambda one: -one[1])
    parts = [f"{category.value} {held / profile.allocated_bytes:.0%}" for category, held in largest[:MAX_CATEGORIES]]
    more = ["…"] * (len(largest) > MAX_CATEGORIES)
    limit = "" if rank.limit_bytes is None else f" of {format_bytes(rank.limit_bytes)}"
    return [
        f"memory profile: peak {format_bytes(profile.allocated_bytes)} allocated{limit} on {_named(rank)} in steps "
        f"{profile.began_step:,} to {profile.ended_step:,} ({', '.join([*parts, *more])})"
    ]


def rank_lines(rank: RankView, found: Found | None) -> list[str]:
    """The rank's verdict, then line, holder, cause and advice."""
    ends = "" if rank.bound is None or rank.bound.state is None else end_words(rank.bound)
    verdict = rank.verdict if rank.last_oom is None else rank.verdict._replace(seconds_to_oom=None)
    lines = [f"{_named(rank)}: {verdict_sentence(verdict)}{f'; {ends}' if ends else ''}"]
    if rank.last_oom is not None and _ended_by_oom(rank):
        lines[0] += f"; {ENDED_BY_OOM} at step {rank.last_oom.step:,}"
    if found is not None:
        lines += [f"  {one_line(sentence, MAX_SENTENCE_CHARS)}" for sentence in brief_sentences(found.brief)]
    return lines


def verdict_sentence(verdict: Verdict) -> str:
    """ "growing: allocated memory grows by 5.2 MiB a step (3.8 MiB to 7.1 MiB) since step 1; out of memory in 24–58
    min", or "ok"."""
    if verdict.state is LeakState.OK or verdict.signal is None:
        return "ok"
    parts = [f"{state_word(verdict.state, verdict.severity)}: {verdict.signal.value} memory grows"]
    if verdict.bytes_per_step is not None:
        low, likely, high = (format_bytes(value) for value in verdict.bytes_per_step)
        parts.append(f"by {likely} a step ({low} to {high})")
    if verdict.onset_step is not None:
        parts.append(f"since step {verdict.onset_step}")
    text = " ".join(parts)
    if verdict.state is LeakState.SUSPECTED:
        # The evidence below may name line and holder beyond doubt: what is in doubt is whether it goes on.
        text += "; whether it lasts is not certain yet"
    if verdict.seconds_to_oom is not None:
        text += f"; out of memory in {format_band(verdict.seconds_to_oom)}"
    return text


class LiveLine(NamedTuple):
    """A line for a terminal while the job runs. It is news when ``state`` changed."""

    about: str
    state: str
    text: str


def live_lines(judge: Judge) -> list[LiveLine]:
    """Each rank's figures and verdict, and its evidence below."""
    found, lines = judge.found(), []
    for rank in judge.ranks():
        who, verdict = _named(rank), rank.verdict
        piece = found.get(rank.process)
        figures = f"step {rank.step:,}, {format_bytes(rank.reserved_bytes)} reserved"
        text = "\n".join([f"{who}: {figures}, {verdict_sentence(verdict)}", *rank_lines(rank, piece)[1:]])
        state = f"{state_word(verdict.state, verdict.severity)} {piece and piece.brief.evidence_id}"
        lines.append(LiveLine(who, state, text))
    return lines


def default_report(answer: JobAnswer, job_id: str) -> Path | None:
    """Where the report goes without ``--report``: into the current directory, if memory grows; else there is none."""
    safe = "".join(char if char.isalnum() or char in "-_." else "-" for char in job_id)[:80]
    return Path(f"tidegauge-report-{safe}.html") if answer.growing else None


def report_of(answer: JobAnswer, *, job_name: str, command: str) -> ReportContent:
    """The report on the job: curves of all ranks, evidence on the one to look at first that has some."""
    from tidegauge_exporter.reports.report_content import RankCurve, ReportContent

    examined = [answer.found[rank.process] for rank in answer.ranks if rank.process in answer.found]
    found = examined[0] if examined else None
    traces = () if found is None else found.traces()
    first = answer.ranks[0].identity
    absent = []
    if found is None and answer.growing:
        absent.append("No evidence was collected: that needs level auto and a rank that was still suspected.")
    return ReportContent(
        made_unix_s=time.time(),
        title=f"GPU memory of {job_name}",
        subject=(
            ("Job", first.job_id),
            ("Name", job_name),
            ("User", answer.ranks[0].user_name),
            ("Command", command or None),
            ("Out of memory", "; ".join(_oom_words(rank) for rank in answer.ranks if _ended_by_oom(rank)) or None),
        ),
        ranks=tuple(
            RankCurve(
                int(rank.identity.rank),
                rank_place(rank.identity.hostname, rank.gpu),
                answer.memory.get(rank.process, ()),
                rank.verdict,
                rank.limit_bytes,
                concerned=rank.verdict.state is not LeakState.OK,
            )
            for rank in answer.ranks
        ),
        evidence=None if found is None else found.evidence,
        early=traces[0] if len(traces) > 1 else None,
        late=traces[-1] if traces else None,
        absent=tuple(absent),
    )


def write_report(answer: JobAnswer, path: Path, *, job_name: str, command: str) -> None:
    """Write the report. Raises ``CommandError``."""
    from tidegauge_exporter.reports.report import render_report

    content = report_of(answer, job_name=job_name, command=command)
    write_output(path, render_report(content).encode(errors="replace"))


def as_json(answer: JobAnswer, *, with_page: bool) -> dict[str, object]:
    """The answer for ``tidegauge.watch``: verdict of the rank to look at first, evidence on it, lines, and the page."""
    if not answer.ranks:
        return {"verdict": None, "evidence": None, "lines": []}
    first = answer.ranks[0]
    found = answer.found.get(first.process)
    page = None
    if with_page and find_spec("tidegauge_exporter") is not None:  # `tidegauge run` may lend the job the probe alone
        from tidegauge_exporter.reports.report import render_report

        page = render_report(report_of(answer, job_name=first.identity.job_name or first.identity.job_id, command=""))
    return {
        "verdict": state_word(first.verdict.state, first.verdict.severity, has_steps=first.step > 0),
        "evidence": None if found is None else to_wire(found.evidence),
        "lines": answer_lines(answer),
        "page": page,
    }


def try_report(answer: JobAnswer, path: Path, *, job_name: str, command: str) -> str:
    """Write the report; returns the line that says where it is, or why there is none."""
    try:
        write_report(answer, path, job_name=job_name, command=command)
    except CommandError as error:
        return f"no report: {error}"
    return f"report: {path}"


def _healthy(ranks: Sequence[RankView]) -> str:
    """ "ranks 0 and 1: ok, 301 steps, peak 188.0 MiB reserved of 80.0 GiB"; steps and peak are the highest."""
    return _of_alike(ranks, state_word(LeakState.OK, None, has_steps=any(rank.step for rank in ranks)))


def _of_alike(ranks: Sequence[RankView], *words: str) -> str:
    numbers = [int(rank.identity.rank) for rank in ranks]
    steps = max(rank.step for rank in ranks)
    fullest = max(ranks, key=lambda rank: rank.highest_reserved_bytes)
    of_limit = "" if fullest.limit_bytes is None else f" of {format_bytes(fullest.limit_bytes)}"
    figures = [format_count(steps, "step")] * (steps > 0) + [
        f"peak {format_bytes(fullest.highest_reserved_bytes)} reserved"
    ]
    group = f"{ranks[0].group}: " if ranks[0].group else ""
    return f"{group}{name_ranks(numbers)}: {', '.join([*words, *figures])}{of_limit}"


def _ended_by_oom(rank: RankView) -> bool:
    return end_of(rank) is JobEnd.OOM


def _oom_words(rank: RankView) -> str:
    return _named(rank) if rank.last_oom is None else f"{_named(rank)} at step {rank.last_oom.step:,}"


def _named(rank: RankView) -> str:
    group = f"{rank.group}: " if rank.group else ""
    return f"{group}{name_ranks([int(rank.identity.rank)])}"
