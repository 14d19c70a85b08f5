"""``tidegauge job``: what it tells of a job of which everything is known, and of one of which nothing is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from loop_store import FakeJobs, FakeProfiles, FakeStore, serving, told_store
from rank_profiles import rank_profile
from sample_views import GIB, NOW_S, job_record
from tidegauge.cli.jobs.job import headline, rank_rows, stretched
from tidegauge.cli.main import main
from tidegauge.cli.times import moment
from tidegauge.cluster.api.http_api import HttpApi, json_route
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.job_records.end_words import fullest_words
from tidegauge.core.job_records.facts import facts, head_room
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobEnd, RankPeak
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import LeakState, Severity, Signal

PEAK = RankPeak(
    3, "node7", 76 * GIB, 78 * GIB, 80 * GIB, nontorch_bytes=GIB, host_bytes=12 * GIB, inactive_split_bytes=GIB,
    alloc_retries=3, ooms=1, steps=2000, step_s=1.2345,
)  # fmt: skip
FULL = job_record(
    job=JobKey("4711", 1, 1001), array="123_4", account="ml", partition="gpu", script="train.py",
    script_sha256="ab" * 32, arguments="--lr 3e-4", torch_version="2.11.0", alloc_conf="expandable_segments:True",
    gpus=8, world_size=24, nodes=3, incidents=(1,), actions=("checkpoint", "requeue"), end=JobEnd.OOM, ooms=2,
    state=LeakState.LEAK, severity=Severity.CRITICAL, signal=Signal.ALLOCATED, fullest=PEAK,
)  # fmt: skip
FIRST = job_record(end=JobEnd.REQUEUED, started_unix_s=NOW_S - 20_000.0, ended_unix_s=NOW_S - 8000.0)
BARE = job_record(
    job=JobKey("local-vm-20261126-120000-1479", 0, 7), job_name="bare", scheduler=None, ended_unix_s=None, end=None,
    steps=0, fullest=RankPeak(0, "vm", GIB, 2 * GIB, None),
)  # fmt: skip
POINTS = tuple(
    MemoryPoint(NOW_S - 7200.0 + 60 * at, at, GIB * (20 + at // 2), GIB * (22 + at // 2), None) for at in range(100)
)
MEMORY = JobMemory(
    tuple(PEAK._replace(rank=rank, reserved_bytes=(78 - rank) * GIB) for rank in (3, *range(4, 26), 0)),
    (RankMemory(3, POINTS), RankMemory(4, POINTS[:2]), RankMemory(5, ())),
)

Said = Callable[..., str]


@pytest.fixture
def store() -> FakeStore:
    store = told_store()
    store.jobs = FakeJobs([FULL, FIRST, BARE], {FULL: MEMORY})
    return store


@pytest.fixture
def said(store: FakeStore, capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    with serving(store, LoopStatus("act", None)) as url:

        def call(*arguments: str, code: int = 0) -> str:
            assert main(["job", *arguments, "--api", url]) == code
            shown = capsys.readouterr()
            return shown.err if code else shown.out

        yield call


def test_of_a_job_everything_that_is_known_is_told() -> None:
    assert re.fullmatch(
        r"job 4711 \(123_4, attempt 1\), llm-pretrain: ended at 20\S+ \S+ after 2 h \(OOM\)",
        headline(FULL),
    )
    told = dict(facts(FULL, moment))
    assert {name: told[name] for name in told.keys() - {"started"}} == {
        "owner": "ada (uid 1001)",
        "account": "ml",
        "command": "train.py --lr 3e-4",
        "script": "sha256 abababababab",
        "torch": "2.11.0",
        "allocator": "expandable_segments:True",
        "where": "slurm, partition gpu, 24 ranks on 8 GPUs of 3 nodes",
        "steps": "200",
        "fullest": "rank 3 on node7: 78.0 GiB of 80.0 GiB reserved (98%), 76.0 GiB allocated, 1.0 GiB outside PyTorch",
        "worst state": "leak (critical), signal allocated",
        "OOMs": "2 ranks ran out of memory at the same time",
        "actions": "checkpoint, requeue",
    }


def test_what_is_not_known_is_left_out(said: Said) -> None:
    out = said("bare")
    assert re.match(r"job local-vm-20261126-120000-1479, bare: running for 2 h; its record so far, of 20\S+ \S+\n", out)
    assert [line.split("  ")[0] for line in out.splitlines()[2:]] == [
        "owner", "where", "started", "fullest", "worst state no steps", "web page",
    ]  # fmt: skip
    assert fullest_words(BARE.fullest) == "rank 0 on vm: 2.0 GiB reserved, 1.0 GiB allocated"
    assert "None" not in out


def test_in_brief_a_job_is_one_line(said: Said) -> None:
    assert said("4711", "--brief") == (
        "job 4711 (123_4, attempt 1): ended after 2 h (OOM); rank 3 on node7: 78.0 GiB of 80.0 GiB "
        "reserved (98%), 76.0 GiB allocated, 1.0 GiB outside PyTorch; `tidegauge job 4711` has all of it; "
        "`tidegauge report 1` makes a page of its incident\n"
    )
    assert said("bare", "--brief").startswith(
        "job local-vm-20261126-120000-1479: running for 2 h; rank 0 on vm: 2.0 GiB"
    )


def test_who_waits_for_the_end_hears_it(said: Said, store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def pass_s(pause_s: float) -> None:
        pauses.append(pause_s)
        store.jobs = FakeJobs([BARE._replace(end=JobEnd.COMPLETED, ended_unix_s=NOW_S)])

    monkeypatch.setattr("tidegauge.cli.jobs.job.time.sleep", pass_s)
    assert ": running for 2 h" in said("bare", "--brief")
    assert ": ended after 2 h (completed)" in said("bare", "--brief", "--wait", "60")
    assert len(pauses) == 1


@pytest.mark.parametrize("wait", ["nan", "-1", "soon"])
def test_a_wait_is_a_number_of_seconds(wait: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["job", "bare", f"--wait={wait}", "--api", "http://127.0.0.1:1"])
    assert exit_.value.code == 2
    assert f"argument --wait: '{wait}' is not a number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize("end", JobEnd)
def test_every_end_has_its_words(end: JobEnd) -> None:
    assert "None" not in headline(FULL._replace(end=end))


def test_the_table_of_ranks_has_the_fullest_and_says_how_many_more_there_are(said: Said) -> None:
    out = said("4711")
    header, *rows = out.split("Peaks of the ranks, the fullest first\n")[1].splitlines()
    assert re.split("  +", header) == [
        "rank", "host", "allocated", "reserved", "outside", "host memory", "limit", "head-room", "retries", "OOMs",
        "steps", "step",
    ]  # fmt: skip
    assert re.split("  +", rows[0]) == [
        "3", "node7", "76.0 GiB", "75.0 GiB", "1.0 GiB", "12.0 GiB", "80.0 GiB", "4.0 GiB", "3", "1", "2,000", "1.23 s",
    ]  # fmt: skip
    assert rows[16] == "and 8 more ranks; --json has them"


def test_short_steps_are_in_milliseconds_and_one_oom_is_no_two_at_the_same_time() -> None:
    told = {0.06257: "62.6 ms", 0.9994: "999 ms", 0.99997: "1 s", 12.345: "12.3 s", 999.7: "17 min"}
    _, rows = rank_rows([PEAK._replace(step_s=step_s) for step_s in told])
    assert [row[-1] for row in rows] == list(told.values())
    assert dict(facts(FULL._replace(ooms=1), moment))["OOMs"] == "1 rank ran out of memory"


def test_columns_of_which_nothing_is_known_are_left_out() -> None:
    header, rows = rank_rows([BARE.fullest])
    assert (header, rows) == (("rank", "host", "allocated", "reserved"), [("0", "vm", "1.0 GiB", "2.0 GiB")])
    assert head_room(BARE.fullest) is None
    assert head_room(PEAK._replace(reserved_bytes=80 * GIB)) == 0


def test_the_curve_of_the_fullest_rank_is_drawn_up_to_its_limit(said: Said) -> None:
    lines = said("4711").splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("Memory of rank 3 up to its limit: "))
    assert lines[at + 1].startswith("80.0 GiB")
    assert lines[at + 6].startswith("       0 ")
    assert re.fullmatch(r"from 20\S+ \S+ to 20\S+ \S+", lines[at + 7])
    assert lines[at + 8] == "(--json has the curves of 1 more rank)"


def test_a_curve_far_below_its_limit_is_drawn_up_to_its_own_peak(store: FakeStore, said: Said) -> None:
    store.jobs.memories[FULL] = MEMORY._replace(curves=(RankMemory(3, POINTS[:3]),))
    out = said("4711")
    assert "\nMemory of rank 3: " in out
    assert "\n23.0 GiB " in out
    assert "curves of" not in out


def test_the_chart_is_by_time_and_keeps_peaks() -> None:
    points = [MemoryPoint(at, 0, amount, amount + 1, None) for at, amount in ((0.0, 5), (1.0, 9), (2.0, 3), (90.0, 4))]
    points += [MemoryPoint(100.0 + at, 0, 1, 2, None) for at in range(6)]
    allocated, reserved = stretched(points, 10)
    assert allocated == [9, 9, 9, 9, 9, 9, 9, 9, 4, 1]
    assert reserved == [10, 10, 10, 10, 10, 10, 10, 10, 5, 2]
    assert stretched(points[:1], 10) == ([5], [6])


def test_attempts_before_and_after_are_listed_with_the_command_that_shows_another(said: Said) -> None:
    newest, oldest, command = said("4711").split("Attempts, the newest first\n")[1].splitlines()[1:]
    assert newest.startswith("1 (this one)")
    assert re.split("  +", oldest)[3:] == ["requeued", "200", "22.0 GiB", "28%", "ok"]
    assert command == "`tidegauge job 4711 --attempt 0` shows another one"
    assert "0 (this one)" in said("4711", "--attempt", "0")
    assert "Attempts" not in said("bare")


def test_incidents_are_listed_with_what_was_done_and_where_their_report_is(said: Said) -> None:
    row, more = said("4711", "--attempt", "0").split("Incidents\n")[1].splitlines()[1:3]
    assert re.split("  +", row)[:4] == ["1", "leak", "critical", "open"]
    assert row.endswith("  requeue: in progress")
    assert more == "`tidegauge incidents show 1` tells its story, `tidegauge report 1` makes a page of it"
    assert "Incidents" not in said("4711")


def test_its_web_page_is_named_at_the_public_address_else_at_the_api(said: Said) -> None:
    page = "/job?job_id=4711&attempt=1&uid=1001"
    assert re.search(rf"^web page    http://127\.0\.0\.1:\d+{re.escape(page)}$", said("4711"), re.MULTILINE)
    public = ("--set", "public_url=https://head.example/tidegauge/")
    assert f"web page    https://head.example/tidegauge{page}\n" in said("4711", *public)
    assert json.loads(said("4711", "--json", *public))["url"] == f"https://head.example/tidegauge{page}"


def test_a_profile_is_named_if_there_is_one(store: FakeStore, said: Said) -> None:
    assert "tidegauge profile" not in said("4711")
    store.profiles = FakeProfiles([rank_profile(0, job=FULL.job)])
    assert said("4711").endswith("`tidegauge profile 4711` shows what filled its GPUs\n")


@pytest.mark.parametrize("name", ["4711", "123_4", "llm-pretrain"])
def test_a_job_is_found_by_id_as_a_task_of_an_array_and_by_name(said: Said, name: str) -> None:
    assert said(name).startswith("job 4711 (123_4, attempt 1), llm-pretrain: ")


def test_an_unknown_job_leads_to_the_history_and_an_unknown_attempt_to_those_that_there_are(said: Said) -> None:
    assert said("train", code=2) == (
        "tidegauge job: no job train is on record; `tidegauge history --since 90d --name 'tra*'` looks for similar "
        "names, `tidegauge jobs` lists running jobs\n"
    )
    assert said("4711", "--attempt", "7", code=2) == ("tidegauge job: job 4711 has no attempt 7 on record, but 0, 1\n")


def test_a_name_with_a_line_end_is_found_as_it_was_recorded(said: Said, store: FakeStore) -> None:
    store.jobs.records.append(job_record(job=JobKey("a?b", 0, 1001), user_name="ada"))
    assert said("a\nb").startswith("job a?b, ")


def test_an_older_service_is_not_taken_for_one_without_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    api = HttpApi({"/api/v1/jobs": json_route(lambda _: {"jobs": ()})}, host="127.0.0.1", port=0)
    api.start()
    try:
        assert main(["job", "4711", "--api", api.url]) == 3
    finally:
        api.stop()
    assert "the service runs an older version of Tidegauge" in capsys.readouterr().err


def test_json_has_all_ranks_and_curves(said: Said) -> None:
    answer = json.loads(said("4711", "--json"))
    assert (len(answer["memory"]["peaks"]), len(answer["memory"]["curves"])) == (24, 3)
    assert [one["job"]["attempt"] for one in answer["attempts"]] == [1, 0]


def test_of_users_with_a_job_of_one_name_the_uid_tells_which(said: Said, store: FakeStore) -> None:
    other = job_record(job=JobKey("4711", 0, 1002), user_name="grace", started_unix_s=NOW_S)
    store.jobs.records.append(other)
    assert "grace (uid 1002)" in said("4711")
    assert "other users have a job of this id, too: --uid 1001\n" in said("4711")
    assert "other users" not in said("4711", "--uid", "1001")
    assert "ada (uid 1001)" in said("4711", "--uid", "1001")
    assert "no job 4711 of uid 7 is on record" in said("4711", "--uid", "7", code=2)


def test_a_job_that_ended_before_the_time_in_question_is_another_one_of_its_number(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegauge.cli.times.time.time", lambda: (FULL.ended_unix_s or 0.0) + 100.0)
    assert said("4711", "--brief", "--since", "101s").startswith("job 4711 (123_4, attempt 1): ended after 2 h")
    assert "job 4711 ended before that time" in said("4711", "--brief", "--since", "99s", code=2)
    assert "running for 2 h" in said("bare", "--brief", "--since", "1s")


def test_a_job_whose_peaks_and_curves_are_gone_is_told_with_that(said: Said, store: FakeStore) -> None:
    assert "keep_jobs_gib" not in said("4711")
    store.jobs.memories.clear()
    told = said("4711")
    assert "they were deleted for room (the setting `keep_jobs_gib`)" in told
    assert "rank 3 on" in told
    assert "keep_jobs_gib" not in said("bare"), "it has just begun"
