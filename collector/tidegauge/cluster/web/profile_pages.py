"""Pages of memory profiles: those of one job's ranks, and two of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

from tidegauge.analysis.profile.imbalance_words import imbalance_advice, imbalance_sentence
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.cluster.web.markup import choice, filter_form
from tidegauge.core.ids import JobKey, job_name
from tidegauge.core.profile.comparison import compare_profiles
from tidegauge.core.profile.imbalance import cause_of, imbalance_of
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.text import one_line
from tidegauge_exporter.reports.html_page import lead, muted, section
from tidegauge_exporter.reports.job_profile_page import RankInFull, job_profile_parts, ranks_in_full
from tidegauge_exporter.reports.profile_comparison_page import comparison_parts

MAX_IN_FULL: Final = 8
"""Each is some 100 KB of markup."""
MAX_CHOICES: Final = 200
_DROP: Final = """<div class="drop" data-own data-snapshots>
<p><label>Snapshots of torch.cuda.memory (<code>.pickle</code>): <input type="file" multiple></label></p>
<p class="muted">Choose one to see what is alive in it, or two to see what grew. They are read in this browser and sent
nowhere.</p><div class="result" role="status"></div></div>"""


class ProfileChoice(NamedTuple):
    """A rank with a profile that can be chosen: the value of an option, and its words."""

    value: str
    words: str
    job: JobKey
    rank: int


def profile_parts(found: Sequence[RankProfile], job: JobKey, *, made_unix_s: float) -> list[str]:
    """The sections of a job's profiles; there is one at least. Raises ``ValueError`` if none can be read."""
    kept: dict[int, StepProfile] = {}
    gaps = []

    def whole(one: RankProfile) -> StepProfile:
        if one.rank not in kept:
            kept[one.rank] = one.profile()
        return kept[one.rank]

    uneven = imbalance_of(found)
    by_rank = {one.rank: one for one in found}
    words = None
    in_full = []
    for one in ranks_in_full(found, uneven, most=MAX_IN_FULL):
        try:
            in_full.append(RankInFull(one, whole(one)))
        except ValueError as error:  # noqa: PERF203 - the others are shown
            gaps.append(f"Rank {one.rank} is not here in full: {error}.")
    if not in_full:
        raise ValueError(gaps[0] if gaps else "no profile can be read")
    if uneven is not None and {uneven.rank, uneven.peer} <= kept.keys():
        cause = cause_of(uneven, whole(by_rank[uneven.rank]), whole(by_rank[uneven.peer]))
        words = " ".join(filter(None, (imbalance_sentence(uneven, cause), imbalance_advice(cause))))
    if len(in_full) < len(found):
        gaps.append(
            f"Of {len(found)} ranks, {len(in_full)} are here in full; `tidegauge profile --ranks` shows others."
        )
    subject = one_line(job_name(job.job_id, job.attempt))
    return job_profile_parts(found, in_full, subject=subject, made_unix_s=made_unix_s, uneven=words, gaps=gaps)


def choices_of(store: LoopStore, jobs: Sequence[JobKey]) -> list[ProfileChoice]:
    """The ranks of these jobs that have a profile."""
    found: list[ProfileChoice] = []
    for job in jobs:
        if len(found) >= MAX_CHOICES:
            break
        for rank in store.profiles.ranks_of(job, limit=MAX_CHOICES - len(found)):
            key = "|".join((job.job_id, str(job.attempt), str(job.uid), job.group, str(rank)))
            name = one_line(job_name(job.job_id, job.attempt, group=job.group), 60)
            found.append(ProfileChoice(key, f"{name}, rank {rank}", job, rank))
    return found


def compare_page(
    known: Sequence[ProfileChoice],
    chosen: Mapping[str, str],
    profile_of: Callable[[ProfileChoice], StepProfile | None],
    *,
    made_unix_s: float,
) -> list[str]:
    """The sections of the page: two profiles of the service, or snapshots that the browser reads."""
    options = {"": "choose a rank", **{one.value: one.words for one in known}}
    form = filter_form(
        *(choice(name, name.capitalize(), options, chosen.get(name, "")) for name in ("before", "after"))
    )
    by_value = {one.value: one for one in known}
    two = [by_value.get(chosen.get(name, "")) for name in ("before", "after")]
    parts = [
        lead("Compare two memory profiles, or two snapshots.", tone="note"),
        section("Profiles of jobs", form if known else muted("No job has a memory profile yet.")),
        section("Snapshots from files", _DROP),
    ]
    first, second = two
    if first is None or second is None:
        return parts
    before, after = profile_of(first), profile_of(second)
    if before is None or after is None:
        return [*parts, muted("One of these profiles cannot be read any more.")]
    compared = compare_profiles(before, after)
    subjects = [escape(first.words), escape(second.words)]
    return [*parts, *comparison_parts(before, after, compared, subjects=subjects, made_unix_s=made_unix_s)]
