from __future__ import annotations

import json
from collections.abc import Iterator
from email.message import Message

import pytest

from loop_store import FakeStore, FakeUsage, serving
from sample_views import GIB
from tidegauge.cli.main import main
from tidegauge.cluster.api.http_api import HttpApi
from tidegauge.cluster.api.record_api import RecordPages
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.http.access import NO_HEADERS, OpenDoor, Viewer

HOUR_S = 3600.0
ROW = GpuUsage("train", "ada", 4, 0, 8, 320 * HOUR_S, 320 * HOUR_S * 80 * GIB, 320 * HOUR_S * 8 * GIB, 80 * GIB,
               9 * GIB, 8.5 * GIB, gpu_bytes=80 * GIB)  # fmt: skip
FULL = ROW._replace(name="", needed_byte_seconds=320 * HOUR_S * 76 * GIB, highest_bytes=76 * GIB, mean_bytes=76.0 * GIB)


@pytest.fixture
def table() -> FakeUsage:
    return FakeUsage([ROW, FULL])


@pytest.fixture
def url(table: FakeUsage) -> Iterator[str]:
    api = HttpApi(RecordPages(FakeStore(usage=table)).routes(), host="127.0.0.1", port=0)
    api.start()
    yield api.url
    api.stop()


def test_jobs_that_left_most_unused_come_first_with_what_would_have_done(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["efficiency", "--api", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["job", "user", "runs", "gpus", "of", "needed", "full", "GPU", "h", "unused"]
    assert " ".join(lines[1].split()) == "train ada 4 8 80.0 GiB 9.0 GiB 10% 320.0 23,040 GiB h"
    assert " ".join(lines[2].split()) == "(none) ada 4 8 80.0 GiB 76.0 GiB 95% 320.0 1,280 GiB h"
    assert lines[3:] == [
        "",
        "train: had 8 × 80.0 GiB, needed 9.0 GiB each at most in 4 runs; with a margin (9.9 GiB) 1/8 of this GPU (MIG, "
        "or --gpu-share 1/8) would do",
    ]


def test_a_capped_gpu_is_at_most_full(url: str, table: FakeUsage, capsys: pytest.CaptureFixture[str]) -> None:
    table.rows = [ROW._replace(limit_bytes=8 * GIB, had_byte_seconds=320 * HOUR_S * 8 * GIB,
                               needed_byte_seconds=320 * HOUR_S * 9 * GIB)]  # fmt: skip
    assert main(["efficiency", "--api", url]) == 0
    row = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert row == "train ada 4 8 8.0 GiB 9.0 GiB 100% 320.0 0 GiB h"


def test_sums_are_by_what_was_asked_and_of_whom(url: str, table: FakeUsage, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--by", "account", "--user", "ada", "--name", "a b&c", "--since", "30d", "--limit", "5000"]
    assert main(["efficiency", *asked, "--api", url]) == 0
    (by, _, limit, user, name) = table.asked[0]
    assert (by, limit, user, name) == (UsageBy.ACCOUNT, 1000, "ada", "a b&c")
    assert capsys.readouterr().out.splitlines()[0].startswith("account")


def test_json_has_figures_and_advice(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["efficiency", "--json", "--api", url]) == 0
    first, second = json.loads(capsys.readouterr().out)["usage"]
    assert (first["usage"]["highest_bytes"], first["share"]) == (9 * GIB, 8)
    assert second["advice"] is None


def test_submissions_are_told_of_jobs_that_need_less(
    url: str, table: FakeUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    table.rows.append(ROW._replace(name="a\tb\nc"))
    assert main(["efficiency", "--for-submission", "--api", url]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines] == [["ada", "train"]]
    assert lines[0][2].startswith("earlier runs had 8 × 80.0 GiB, needed 9.0 GiB each at most in 4 runs; ")
    assert table.asked[0][2] == 1000


def test_jobs_on_shared_gpus_are_limited_to_what_their_runs_needed(
    url: str, table: FakeUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    table.rows = [
        ROW._replace(completed=3),
        FULL._replace(name="full", completed=3),
        ROW._replace(name="rare", completed=2),
        ROW._replace(name="grew", completed=9, ooms=1),
        ROW._replace(name="a\tb", completed=3),
        ROW._replace(name="", completed=3),
    ]
    assert main(["efficiency", "--for-sharing", "--api", url]) == 0
    told = capsys.readouterr().out
    assert told == f"ada\ttrain\t{int(9.9 * GIB)}\nada\tfull\t{int(83.6 * GIB)}\n"
    assert table.asked[0][2] == 1000


def test_admission_is_told_what_every_job_needed(
    url: str, table: FakeUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    table.rows.append(ROW._replace(name="a\tb"))
    table.rows.append(FULL._replace(name="grew", ooms=2))
    assert main(["efficiency", "--for-admission", "--api", url]) == 0
    assert capsys.readouterr().out == "".join(
        f"ada\t{row.name}\t{row.highest_bytes}\t{row.runs}\t{row.ooms}\n"
        for row in table.rows if row.name and "\t" not in row.name
    )  # fmt: skip
    assert table.asked[0][2] == 1000


def test_one_file_at_a_time_is_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["efficiency", "--for-admission", "--for-sharing", "--api", url]) == 2
    assert "--for-sharing and --for-admission are two files" in capsys.readouterr().err


def test_whoever_asks_for_one_job_sees_its_limit_on_shared_gpus(
    url: str, table: FakeUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    table.rows = [FULL._replace(name="full", completed=3)]
    line = "full: on a shared GPU 83.6 GiB at most, where the site limits jobs to what their earlier runs needed and"
    assert main(["efficiency", "--name", "full", "--api", url]) == 0
    assert capsys.readouterr().out.splitlines()[3].startswith(line)
    assert main(["efficiency", "--api", url]) == 0
    assert line not in capsys.readouterr().out


def test_without_runs_the_next_step_is_told(url: str, table: FakeUsage, capsys: pytest.CaptureFixture[str]) -> None:
    table.rows.clear()
    assert main(["efficiency", "--api", url]) == 0
    assert "no run of 10 min or longer ended in the last 7 d" in capsys.readouterr().out
    assert main(["efficiency", "--api", url, "--name", "mul*", "--user", "ada", "--since", "90d"]) == 0
    assert capsys.readouterr().out == (
        "no run of 10 min or longer ended in the last 90 days with --user ada --name 'mul*'\n"
    )


class EvesDoor(OpenDoor):
    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer:
        return Viewer("eve", sees_all=False, reads_metrics=False)


def test_who_sees_only_his_own_runs_reads_why_there_are_none(
    table: FakeUsage, capsys: pytest.CaptureFixture[str]
) -> None:
    table.rows.clear()
    with serving(FakeStore(usage=table), LoopStatus("observe", None), EvesDoor()) as url:
        assert main(["efficiency", "--api", url]) == 0
    assert "the service sees you as eve; only its admins see other users' jobs" in capsys.readouterr().out


def test_an_unknown_sum_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["efficiency", "--by", "foo"])
    assert "invalid choice 'foo' (choose from" in capsys.readouterr().err
