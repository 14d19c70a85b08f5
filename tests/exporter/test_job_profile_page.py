"""The page of a job's memory profiles: bars of all ranks add up, and each rank in full has all that is known of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from rank_profiles import rank_profile, steady_profile
from sample_views import MIB
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge_exporter.reports.job_profile_page import MAX_TALL_BARS, RankInFull, TextTable, render_job

HALF = {"allocated_bytes": 100 * MIB, "by_category": {Category.PARAMETERS: 60 * MIB, Category.OTHER: 40 * MIB}}


def rendered(*ranks: RankProfile, uneven: str | None = None, tables: tuple[TextTable, ...] = ()) -> str:
    in_full = [RankInFull(one, steady_profile(), tables) for one in ranks[:2]]
    return render_job(ranks, in_full, subject="4711", made_unix_s=1.8e9, uneven=uneven)


def bars(page: str) -> list[tuple[int, dict[str, float], str]]:
    """Of each rank: its parts, in percent of the widest bar, and the figure beside them."""
    found = re.findall(r'<li class="[^"]*" data-rank="(\d+)">.*?(<svg.*?</svg>)<span>(.*?)</span></li>', page)
    part = r'<rect class="area ([a-z-]+)" x="[0-9.]+" width="([0-9.]+)"'
    return [(int(rank), {css: float(w) for css, w in re.findall(part, svg)}, said) for rank, svg, said in found]


def test_a_bar_is_as_long_as_what_its_rank_holds() -> None:
    (first, whole, _), (second, half, said) = bars(rendered(rank_profile(0), rank_profile(1, **HALF)))
    assert (first, second, said) == (0, 1, "100.0 MiB")
    assert sum(whole.values()) == pytest.approx(100, abs=0.01)
    assert half == pytest.approx({"of-parameters": 60 / 2.715, "of-other": 40 / 2.715}, rel=1e-3)


def test_what_lies_outside_pytorch_is_in_the_bars_where_it_is_known_of_all() -> None:
    known = rank_profile(0, process_outside_bytes=200 * MIB, other_processes_bytes=50 * MIB)
    some = rendered(known, rank_profile(1))
    assert "nontorch" not in str(bars(some))
    assert '<td class="number">200.0 MiB</td>' in some  # the table has it
    every = rendered(known, replace(known, rank=1, process_outside_bytes=500 * MIB))
    assert "At the peak of each rank, and outside PyTorch by NVML" in every
    assert [said for _, _, said in bars(every)] == ["521.5 MiB", "821.5 MiB"]


def test_memory_of_watched_jobs_is_no_other_processs_in_bars_and_table() -> None:
    beside = {"process_outside_bytes": 200 * MIB, "other_processes_bytes": 50 * MIB, "other_jobs_bytes": 30 * MIB}
    page = rendered(rank_profile(0, **beside), rank_profile(1, **beside))
    assert [said for _, _, said in bars(page)] == ["491.5 MiB"] * 2
    assert page.count('<td class="number">20.0 MiB</td>') == 2


def test_a_single_rank_has_neither_bars_nor_a_choice() -> None:
    page = rendered(rank_profile(5, world_size=8))
    assert "<ol" not in page
    assert "<select>" not in page
    assert "<span>Rank <b>5 (of 8)</b></span>" in page
    assert "<h1>271.5 MiB at the peak, mostly activations (30%) and workspaces (24%).</h1>" in page


def test_bars_of_many_ranks_are_thin_and_some_have_a_number() -> None:
    assert '<ol class="rank-bars">' in rendered(*map(rank_profile, range(MAX_TALL_BARS)))
    page = rendered(*map(rank_profile, range(256)))
    assert '<ol class="rank-bars thin">' in page
    assert len(bars(page)) == 256
    assert len(re.findall('<li class="[^"]*named"', page)) == 16
    assert "2 of the 256 ranks are here in full." in page


def test_equal_ranks_are_said_to_be_equal_and_others_why_they_are_not() -> None:
    equal = "No rank holds over 2% (and 2.0 MiB) more than the median rank."
    ranks = [rank_profile(0), rank_profile(1)]
    assert equal in rendered(*ranks)
    page = rendered(*ranks, uneven="Rank 1 has <more>.")
    assert equal not in page
    assert "Rank 1 has &lt;more&gt;." in page


def test_names_of_a_job_stay_text() -> None:
    hostile = "<script>alert(1)</script>"
    ranks = [rank_profile(rank, hostname=hostile, problems=(hostile,)) for rank in range(2)]
    tables = (TextTable(hostile, (hostile, "bytes"), [(hostile, "1 B")], numbers=[1]),)
    page = render_job(
        ranks,
        [RankInFull(ranks[0], steady_profile(), tables)],
        subject=hostile,
        made_unix_s=1.8e9,
        uneven=hostile,
        gaps=[hostile],
    )
    assert page.count("<script") == 1  # the page's own
    assert page.count("&lt;script&gt;alert(1)") >= 9


def test_the_page_says_how_many_of_the_ranks_it_has() -> None:
    two = rendered(*(rank_profile(rank, world_size=8) for rank in (1, 5)))
    assert "<span>Ranks <b>2 of 8</b></span>" in two
    assert "the other rank" in two
    three = rendered(*map(rank_profile, range(3)))
    assert "<span>Ranks <b>3</b></span>" in three
    assert "emptiest rank" in three
