"""What the tables and pages of ``tidegauge top`` say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from jobs_of_ranks import jobs_of
from sample_views import GIB, LEAK, MIB, NOW_S, rank_summary
from scheduler_values import decision, died_of_oom, incident, record
from tidegauge.cli.top.columns import (
    Cell,
    Tone,
    end_cell,
    fit,
    incident_columns,
    job_columns,
    line,
    name_job_shortly,
    rank_columns,
    share_cell,
    state_cell,
)
from tidegauge.cli.top.model import IncidentRow, Selection, incident_rows, job_rows, rank_rows
from tidegauge.cli.top.pages import (
    Line,
    headline,
    help_lines,
    incident_headline,
    incident_lines,
    job_headline,
    over_time,
    rank_page,
)
from tidegauge.cluster.api.overview import RankLine, job_page
from tidegauge.cluster.coordinator.grouping import RankOnNode
from tidegauge.core.host_memory import HostProcess
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents import Closure, IncidentState
from tidegauge.core.incidents.actions import ActionKind, Disposition, Outcome
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import Band, LeakState, Severity, Signal
from top_world import World

WORLD = World().live(reports=60).tell_incidents()
SERVICE = WORLD.service()
WIDTHS = st.integers(40, 250)


def text_of(cells: Line) -> str:
    return "".join(cell.text for cell in cells)


def a_rank(**changes: Any) -> RankLine:
    (job,) = jobs_of([RankOnNode(rank_summary(verdict=LEAK), "node7", False, "id")])
    return job_page(job, lambda _, __: (), now_unix_s=1.0).ranks[0]._replace(**changes)


def points(count: int, **changes: Any) -> list[MemoryPoint]:
    return [MemoryPoint(NOW_S + n, n, n * GIB, n * GIB + GIB, 700 * MIB)._replace(**changes) for n in range(count)]


@pytest.mark.parametrize("width", [79, 119, 200])
def test_every_table_fits_its_width(width: int) -> None:
    incidents = SERVICE.incidents().lines
    page = SERVICE.job(JobKey("48211", 0, 1001))
    jobs = job_rows(SERVICE.overview().jobs, incidents, Selection())
    shown = [line(fit(job_columns(), width), row) for row in jobs]
    shown += [line(fit(rank_columns(), width), rank) for rank in rank_rows(page.ranks, Selection())]
    shown += [line(fit(incident_columns(), width), one) for one in incident_rows(incidents, Selection())]
    assert {cell_len(text_of(cells)) <= width for cells in shown} == {True}


def test_at_eighty_columns_a_job_says_what_matters() -> None:
    rows = job_rows(SERVICE.overview().jobs, SERVICE.incidents().lines, Selection())
    chosen = fit(job_columns(), 79)
    assert [column.title for column, _ in chosen] == [
        "state", "job", "user", "ranks", "memory", "used", "per step", "OOM in",
    ]  # fmt: skip
    first = text_of(line(chosen, rows[0])).split()
    assert first[:4] == ["leak", "!!!", "48211", "ada"]
    assert first[-5:] == ["85%", "12.0", "MiB", "14\u201322", "min"]


def test_a_wide_line_says_more() -> None:
    titles = [column.title for column, _ in fit(job_columns(), 119)]
    assert {"name", "rank", "incident"} <= set(titles)
    assert {"nodes", "step", "of a GPU"} <= {column.title for column, _ in fit(job_columns(), 230)}


@pytest.mark.parametrize(
    ("state", "severity", "changes", "cell"),
    [
        (LeakState.OK, None, {}, Cell("ok", Tone.GOOD)),
        (LeakState.SUSPECTED, Severity.CRITICAL, {}, Cell("suspected", Tone.WARNING)),
        (LeakState.LEAK, Severity.NOTE, {}, Cell("growing !", Tone.WARNING)),
        (LeakState.LEAK, Severity.WARNING, {}, Cell("growing !!", Tone.WARNING)),
        (LeakState.LEAK, Severity.CRITICAL, {}, Cell("leak !!!", Tone.ALARM)),
        (LeakState.LEAK, Severity.CRITICAL, {"stale": True}, Cell("stale !!!", Tone.WARNING)),
        (LeakState.OK, None, {"has_steps": False}, Cell("no steps", Tone.DIM)),
        (LeakState.SUSPECTED, None, {"has_steps": False}, Cell("suspected", Tone.WARNING)),
        (LeakState.OK, None, {"stale": True}, Cell("stale", Tone.WARNING)),
        (LeakState.LEAK, Severity.CRITICAL, {"alive": False}, Cell("ended", Tone.DIM)),
    ],
)
def test_a_state_is_said_in_words_and_marks(
    state: LeakState, severity: Severity | None, changes: dict[str, bool], cell: Cell
) -> None:
    assert state_cell(state, severity, **({"alive": True, "stale": False} | changes)) == cell


def test_no_two_states_differ_by_colour_alone() -> None:
    cells = {
        state_cell(state, severity, alive=True, stale=stale)
        for state in LeakState
        for severity in (None, *Severity)
        for stale in (False, True)
    }
    assert len({cell.text for cell in cells}) == len(cells)


@pytest.mark.parametrize(
    ("seconds", "text", "tone"),
    [
        (None, "-", Tone.DIM),
        (Band(math.inf, math.inf, math.inf), "-", Tone.DIM),
        (Band(840.0, 1080.0, 1320.0), "14\u201322 min", Tone.ALARM),
        (Band(2000.0, 2500.0, math.inf), "33 min+", Tone.ALARM),
        (Band(19_000.0, 25_000.0, 34_000.0), "5.3\u20139.4 h", Tone.STRONG),
    ],
)
def test_the_time_that_is_left_is_red_within_the_hour(seconds: Band | None, text: str, tone: Tone) -> None:
    assert end_cell(seconds) == Cell(text, tone)


def test_the_end_is_in_steps_where_time_is_not_known_and_a_share_may_not_be_known() -> None:
    assert end_cell(None, Band(100.0, 200.0, 300.0)).text == "100\u2013300 steps"
    assert [share_cell(share).text for share in (None, 0.0, 0.934, 1.2)] == ["-", "0%", "93%", "120%"]
    assert [share_cell(share).tone for share in (0.84, 0.85)] == [Tone.PLAIN, Tone.WARNING]


def test_a_second_attempt_is_named() -> None:
    assert [name_job_shortly(JobKey("4711", attempt, 1)) for attempt in (0, 2)] == ["4711", "4711 (2)"]


def test_the_headline_counts_nodes_jobs_and_gpus() -> None:
    told = SERVICE.overview()
    assert text_of(headline(told)) == "7 nodes   7 jobs, 1 leak, 2 growing   56 GPUs, 57% full"
    sick = {"ok": 1, "stale": 1, "gone": 2, "waiting": 0}
    few = replace(told, nodes=sick, jobs=told.jobs[-1:], gpus=1, gpu_used_bytes=None, left_out=4001)
    assert text_of(headline(few)) == "2 nodes, 1 stale, 2 gone   0 jobs and 4,001 not shown   1 GPU"


def test_a_jobs_headline_says_whose_it_is_and_whether_it_may_be_acted_on() -> None:
    job = SERVICE.job(JobKey("48211", 0, 1001)).job
    assert text_of(job_headline(job, job.job_name)).startswith("llm-pretrain-7b   16 of 16 ranks on 2 nodes, step")
    told = text_of(job_headline(job._replace(scheduler=None, exempt=True, running=False), None))
    assert told.startswith("16 of 16")
    assert told.endswith("of ada, no scheduler, exempt from actions, ended")


@given(st.integers(46, 200), st.integers(1, 60), st.integers(0, 40))
def test_the_page_of_a_rank_fits_its_width_and_its_height_if_that_is_possible(
    width: int, height: int, count: int
) -> None:
    page = rank_page(a_rank(), points(count), width=width, height=height)
    assert max(cell_len(text_of(cells)) for cells in page) <= width
    if width >= 70 and height >= 20:
        assert len(page) <= height


def test_the_page_of_a_rank_says_in_which_step_of_slurm_it_is() -> None:
    page = [text_of(cells) for cells in rank_page(a_rank()._replace(slurm_step="0"), [], width=80, height=24)]
    assert "on node7, GPU 0, pid 1000, Slurm step 0, step 200" in page


def test_the_page_of_a_rank_names_its_pod_and_container() -> None:
    def page(rank: RankLine) -> list[str]:
        return [text_of(cells) for cells in rank_page(rank, [], width=80, height=24)]

    in_pod = a_rank()._replace(pod="team-a/train-0-x7k2p", container="main")
    assert "in pod team-a/train-0-x7k2p, container main" in page(in_pod)
    assert "in pod team-a/train-0-x7k2p" in page(in_pod._replace(container=None))
    assert not [text for text in page(a_rank()) if "in pod" in text]


def test_the_page_of_a_rank_says_what_is_the_matter_and_what_grows() -> None:
    page = [text_of(cells) for cells in rank_page(a_rank(), points(30), width=80, height=24)]
    assert page[0].startswith("leak !!!  rank 0 leaks 12.0 MiB per step since step 40; at this rate it runs out")
    assert "without .detach()" in " ".join(page)
    assert "on node7, GPU 0, pid 1000, step 200" in page
    assert "limit 80.0 GiB, host memory 4.0 GiB" in page
    titles = [" ".join(text.split()) for text in page if text.startswith(("used", "cached"))]
    assert titles == [
        "used 30.7 GiB of 80.0 GiB allocated 29.0 GiB +12.0 MiB/step",
        "cached 1.0 GiB nontorch 700.0 MiB",
    ]
    assert page[-1].startswith("over 29 s, until ")


def test_charts_of_a_rank_have_their_own_ranges_or_go_to_the_limit() -> None:
    def ends(*, is_whole: bool = False) -> list[str]:
        page = [text_of(cells) for cells in rank_page(a_rank(), points(30), width=80, height=24, is_whole=is_whole)]
        top = next(place for place, text in enumerate(page) if text.startswith("used "))
        charts = page[top + 1 : next(place for place, text in enumerate(page) if text.startswith("cached"))]
        return [" ".join(charts[place].split()[:2]) for place in (0, -1)]

    assert ends() == ["30.7 GiB", "8.7 GiB"]
    assert ends(is_whole=True) == ["80.0 GiB", "0 B"]


def test_a_quiet_rank_and_a_suspected_one_are_told_as_such() -> None:
    quiet = rank_page(a_rank(state=LeakState.OK, signal=None), points(3), width=80, height=24)
    assert text_of(quiet[0]) == "ok"
    perhaps = a_rank(state=LeakState.SUSPECTED, signal=Signal.NONTORCH, severity=Severity.WARNING)
    assert text_of(rank_page(perhaps, points(3), width=200, height=24)[0]).startswith(
        "suspected  apparently rank 0 grows by 12.0 MiB per step outside PyTorch's allocator"
    )


def test_all_that_is_known_of_a_rank_is_said() -> None:
    page = rank_page(
        a_rank(gpu=None, limit_bytes=None, cap_fraction=0.5, host_rss_bytes=None, oom_at_unix_s=NOW_S), [], width=120,
        height=24,
    )  # fmt: skip
    told = "\n".join(text_of(cells) for cells in page)
    assert "GPU unknown" in told
    assert "limit unknown (capped at 50% of the GPU), ran out of memory at 20" in told
    assert "no readings since the coordinator started" in told


def test_top_rank_page_lists_host_processes_that_hold_and_grow() -> None:
    """A DataLoader's worker of the tutorial that caches its samples."""
    processes = (
        HostProcess(ProcessId(1042, 7), "DataLoader worker", 19 * 2**30, 18 * 2**30),
        HostProcess(ProcessId(1000, 5), "python", 2**30, 2**20),
    )
    leaking = a_rank(signal=Signal.HOST, host_processes=processes)
    told = " ".join(text_of(cells) for cells in rank_page(leaking, points(3), width=120, height=40))
    assert "on the host: 19.0 GiB DataLoader worker (1042) +18.0 GiB, 1.0 GiB python (1000)" in told
    assert "Process 1042 (DataLoader worker) grew most: by 18.0 GiB to 19.0 GiB." in told
    alone = rank_page(a_rank(host_processes=processes[1:]), points(3), width=120, height=40)
    assert "on the host" not in " ".join(text_of(cells) for cells in alone)


def test_memory_that_nvml_does_not_tell_is_not_known() -> None:
    page = rank_page(a_rank(), points(5, nontorch_bytes=None), width=60, height=30)
    assert any(text_of(cells).startswith("nontorch unknown") for cells in page)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 10**12)), min_size=1, max_size=120), st.integers(1, 200))
def test_a_picture_over_time_is_as_wide_as_asked_and_as_high_as_the_highest(
    told: list[tuple[float, int]], width: int
) -> None:
    life = [MemoryPoint(NOW_S + at_s, 0, 0, 0, None) for at_s, _ in sorted(told)]
    drawn = over_time(life, [amount for _, amount in sorted(told)], width)
    assert len(drawn) == width
    assert max(drawn) == max(amount for _, amount in told)


def test_a_picture_is_even_in_time_and_a_gap_is_as_before_it() -> None:
    life = [MemoryPoint(NOW_S + at_s, 0, 0, 0, None) for at_s in (0.0, 1.0, 10.0)]
    assert over_time(life, [1, 2, 3], 10) == [1, 2, 2, 2, 2, 2, 2, 2, 2, 3]
    assert over_time(life[:1], [None], 3) == [0, 0, 0]


@given(WIDTHS)
def test_the_page_of_an_incident_tells_its_story_at_any_width(width: int) -> None:
    page = [text_of(cells) for cells in incident_lines(SERVICE.incident(12), width=width, now_s=NOW_S)]
    assert max(map(cell_len, page)) <= width
    told = " ".join(page)
    for word in ("12.0 MiB", "happened", "severity", "would checkpoint", "observe"):
        assert word in " ".join(told.split())


def test_at_eighty_columns_the_ranks_of_an_incident_keep_host_and_time() -> None:
    page = [text_of(cells) for cells in incident_lines(SERVICE.incident(12), width=78, now_s=NOW_S)]
    place = next(n for n, text in enumerate(page) if text.startswith("rank  host"))
    assert page[place].endswith("OOM in")
    assert page[place + 1].split()[:2] == ["11", "gpu-node-01"]


def test_an_incidents_headline_is_red_while_it_is_critical() -> None:
    assert incident_headline(incident())[0] == Cell("leak, critical", Tone.ALARM)
    over = incident(state=IncidentState.CLOSED, closure=Closure.RECOVERED, stale=True)
    assert text_of(incident_headline(over)) == "leak, critical, closed, stale figures"
    assert incident_headline(over)[0].tone is Tone.STRONG
    died = incident_headline(died_of_oom())
    assert (text_of(died), died[0].tone) == ("leak, critical, ran out of memory", Tone.ALARM)


def test_top_incident_rows_show_the_latest_decision() -> None:
    told = [
        IncidentRow(incident(), (1,), None),
        IncidentRow(incident(stale=True), (1,), record(decision(), Outcome.DONE)),
        IncidentRow(incident(), (1,), record(decision(ActionKind.CAP, disposition=Disposition.WOULD))),
    ]
    shown = [text_of(line(fit(incident_columns(), 100), one)) for one in told]
    assert [text.rstrip().rpartition("  ")[2].strip() for text in shown] == [
        "14\u201322 min none", "14\u201322 min notify: done", "14\u201322 min would cap",
    ]  # fmt: skip
    assert "stale" in shown[1]


@given(WIDTHS)
def test_the_help_names_every_key_at_any_width(width: int) -> None:
    page = [text_of(cells) for cells in help_lines(width=max(width, 34))]
    assert max(map(len, page)) <= max(width, 34)
    for key in ("Enter", "Escape", "t m g n", "/ ", "u ", "r ", "? ", "q "):
        assert any(text.strip().startswith(key.strip()) for text in page)
