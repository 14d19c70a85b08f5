"""``tidegauge history``: which jobs it lists, what it tells of them, and the line that sums up."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from loop_store import FakeJobs, FakeStore, serving
from sample_views import GIB, job_record
from tidegauge.cli.jobs.history import summary, table_of
from tidegauge.cli.main import main
from tidegauge.cli.output import narrowed, plain_lines
from tidegauge.cluster.api.http_api import HttpApi, json_route
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.job_records.record import JobEnd, JobRecord, RankPeak
from tidegauge.core.verdicts import LeakState, Severity

DAY_S = 86_400.0
Said = Callable[..., str]


def ended(days_ago: float, job_id: str, **changes: object) -> JobRecord:
    at_s = time.time() - days_ago * DAY_S
    fields = {"started_unix_s": at_s - 7200.0, "updated_unix_s": at_s, "ended_unix_s": at_s, **changes}
    return job_record(job=JobKey(job_id, 0, 1001), **fields)


RECORDS = (
    ended(1, "4714", end=JobEnd.OOM, state=LeakState.LEAK, severity=Severity.CRITICAL,
          fullest=RankPeak(3, "node7", 77 * GIB, 79 * GIB, 80 * GIB)),
    ended(5, "4713", user_name="bob", job_name="sweep", account="ml", end=JobEnd.COMPLETED),
    ended(20, "4712", job_name=None, fullest=RankPeak(0, "node1", GIB, 2 * GIB, None)),
    ended(40, "4711", job_name="llm-tune"),
)  # fmt: skip


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[Said]:
    with serving(FakeStore(jobs=FakeJobs(list(RECORDS))), LoopStatus("act", None)) as url:

        def call(*arguments: str) -> str:
            assert main(["history", *arguments, "--api", url]) == 0
            return capsys.readouterr().out

        yield call


def listed(out: str) -> list[str]:
    return [line.split()[0] for line in out.splitlines() if line[:1].isdigit() and line[:2] == "47"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], ["4714", "4713", "4712"]),
        (["--since", "90d"], ["4714", "4713", "4712", "4711"]),
        (["--since", "90d", "--until", "10d"], ["4712", "4711"]),
        (["--user", "bob"], ["4713"]),
        (["--account", "ml"], ["4713"]),
        (["--name", "llm-*", "--since", "90d"], ["4714", "4711"]),
        (["--name", "sweep"], ["4713"]),
        (["--ended", "oom"], ["4714"]),
        (["--limit", "1"], ["4714"]),
    ],
)
def test_history_lists_the_jobs_that_were_asked_for_newest_first(
    said: Said, arguments: list[str], found: list[str]
) -> None:
    assert listed(said(*arguments)) == found


def test_each_job_has_its_peak_in_percent_of_its_limit(said: Said) -> None:
    header, first, second, third, *_ = said().splitlines()
    assert re.split(r"  +", header)[-4:] == ["peak reserved", "GPU limit", "of limit", "worst state"]
    assert re.split(r"  +", first)[8:] == ["OOM", "77.0 GiB", "79.0 GiB", "80.0 GiB", "99%", "leak (critical)"]
    assert re.split(r"  +", second)[1:4] == ["sweep", "bob", "ml"]
    assert re.split(r"  +", third)[-2:] == ["-", "ok"]


def test_the_last_line_sums_up(said: Said) -> None:
    assert said().splitlines()[-2:] == [
        "", "3 jobs, 1 ended by OOM; the fullest rank of a job reserved 63% of its limit (median)",
    ]  # fmt: skip
    assert summary(RECORDS[2:3], left_out=1234) == (
        "1 job, none ended by OOM; 1,234 more ended before these: --limit 1000, or a shorter --since and --until"
    )


def test_the_table_fits_80_columns_with_job_end_and_share() -> None:
    records = [*RECORDS, ended(3, "local-login-20261126-120000-1479", job_name="llm-pretrain-7b-long", account="ml")]
    header, rows = narrowed(*table_of(records), 80)
    assert max(map(len, plain_lines(header, rows))) <= 80
    assert {"job", "ended", "how", "of limit"} <= set(header)


def test_without_an_account_there_is_no_column_for_it() -> None:
    header, rows, gives_way = table_of(RECORDS[:1])
    assert "account" not in (*header, *gives_way)
    assert len(rows[0]) == len(header)
    assert rows[0][3] == "2", "the ranks are in their column"


def test_where_no_job_matches_it_says_what_was_looked_for_and_where_else_to_look(said: Said) -> None:
    out = said("--user", "nobody", "--ended", "failed")
    assert re.match(r"no job ended since 20\S+ \S+ with --user nobody --ended failed; ", out)
    assert "`tidegauge history --since 90d` looks further back" in out


def test_a_search_that_went_further_back_is_not_sent_back_to_90_days(said: Said) -> None:
    assert "90d" not in said("--user", "nobody", "--since", "120d")


@pytest.mark.parametrize("how", ["OOM", "by itself"])
def test_the_words_of_the_table_say_how_a_job_ended(said: Said, how: str) -> None:
    assert {"OOM": ["4714"], "by itself": ["4712"]}[how] == listed(said("--ended", how))


@pytest.mark.parametrize("command", ["history", "efficiency"])
@pytest.mark.parametrize("option", ["--name", "--user"])
def test_an_empty_filter_is_refused(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, option, ""])
    assert f"argument {option}: it is empty" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["history", "efficiency"])
def test_an_older_service_is_said_to_be_older(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    api = HttpApi({"/api/v1/jobs": json_route(lambda _: {"jobs": ()})}, host="127.0.0.1", port=0)
    api.start()
    url = api.url
    try:
        assert main([command, "--api", api.url]) == 3
    finally:
        api.stop()
    said = capsys.readouterr().err
    assert said == (
        f"tidegauge {command}: the service at {url} has no such page: it runs an older version of Tidegauge, or is "
        "none of Tidegauge's\n"
    )


def test_json_is_the_answer_of_the_api(said: Said) -> None:
    answer = json.loads(said("--json", "--ended", "oom"))
    assert [one["job"]["job_id"] for one in answer["jobs"]] == ["4714"]
    assert answer["left_out"] == 0


def test_an_empty_stretch_of_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--since", "7d", "--until", "30d"]) == 2
    assert "no time is left between --since and --until" in capsys.readouterr().err
