"""``tidegauge top`` for scripts: tables once, JSON, and what it says where it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sample_views import GIB
from tidegauge.cli.main import main
from top_world import LEAKS, MadeUpJob, World, serving_world


@pytest.fixture(scope="module")
def world() -> World:
    return World().live(reports=20).tell_incidents()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with serving_world(world) as url:
        yield url


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["top", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_once_prints_jobs_and_incidents_in_whole_lines(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--once", "--api", url)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "lab   7 nodes   7 jobs, 1 leak, 2 growing   56 GPUs, 57% full"
    assert lines[1] == "policy observe, 2 incidents open"
    assert lines[2].split()[:3] == ["state", "job", "name"]
    assert lines[3].split()[:5] == ["leak", "!!!", "48211", "llm-pretrain-7b", "ada"]
    assert lines[11:13] == ["", lines[12]]
    assert "would checkpoint" in lines[13]
    assert "\x1b" not in out


def test_top_command_prints_once_if_stdout_is_no_terminal(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--api", url) == run(capsys, "--once", "--api", url)


def test_top_command_prints_once_on_a_terminal_that_cannot_move_its_cursor(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    code, out, _ = run(capsys, "--api", url)
    assert code == 0
    assert out.startswith("lab   7 nodes")
    assert "\x1b" not in out


def test_users_and_order_are_chosen_by_options(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--once", "--user", "ada", "--sort", "memory", "--api", url)[1]
    assert [line.split()[1] for line in out.splitlines()[3:5]] == ["48230", "!!!"]
    assert "#11" not in out
    assert "no matching job" in run(capsys, "--once", "--user", "nobody", "--api", url)[1]


def test_a_job_is_told_by_its_ranks(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, "--once", "--job", "48211", "--api", url)[1].splitlines()
    assert out[0].startswith("job 48211   llm-pretrain-7b   16 of 16 ranks on 2 nodes")
    assert out[2].split()[:4] == ["leak", "!!!", "11", "gpu-node-01"]
    assert len(out) == 2 + 16 + 3
    assert "#12" in out[-1]


def test_a_job_with_two_groups_of_ranks_is_told_by_both_and_each_by_its_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trains = MadeUpJob("48300", "llm", "ada", 1001, "slurm", 0, 4, 30 * GIB, run_id="a")
    evaluates = MadeUpJob("48300", "llm", "ada", 1001, "slurm", 8, 2, 9 * GIB, {1: LEAKS}, attempt=1, run_id="b",
                              attempts_each=4)  # fmt: skip
    with serving_world(World((trains, evaluates)).live(reports=20)) as url:
        both = run(capsys, "--once", "--job", "48300", "--api", url)[1]
        titles = [line.split("   ")[0] for line in both.splitlines() if line.startswith("job ")]
        assert titles == ["job 48300 (pid 20800, 1)", "job 48300 (pid 20000)"], "the one that leaks first"
        for title, ranks in zip(titles, (2, 4)):
            one = run(capsys, "--once", "--job", title.removeprefix("job "), "--api", url)[1].splitlines()
            assert (one[0].startswith(title), len(one)) == (True, 2 + ranks + 2)
        page = json.loads(run(capsys, "--json", "--job", "48300", "--api", url)[1])
        assert [len(one["ranks"]) for one in (page, *page["other_groups"])] == [2, 4]


def test_a_job_without_an_id_of_a_scheduler_goes_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        MadeUpJob(f"local-vm-20261123-{number}", name, "ada", 1001, None, 4 * number, 2, 30 * GIB)
        for number, name in enumerate(("hfleak", "nanogpt"))
    ]
    with serving_world(World(tuple(jobs)).live(reports=5)) as url:
        table = run(capsys, "--once", "--api", url)[1]
        page = run(capsys, "--once", "--job", "hfleak", "--api", url)[1]
    assert {"hfleak", "nanogpt"} <= set(table.split())
    assert "local-vm" not in table
    assert page.startswith("job hfleak   local-vm-20261123-0   2 of 2 ranks")


def test_json_is_one_object_with_what_the_api_answers(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = json.loads(run(capsys, "--json", "--api", url)[1])
    assert (answer["cluster"], len(answer["jobs"]), len(answer["incidents"])) == ("lab", 8, 2)
    assert answer["jobs"][0]["first"]["seconds_to_oom"] == {"low": 840.0, "likely": 1080.0, "high": 1320.0}
    chosen = json.loads(run(capsys, "--json", "--user", "ada", "--sort", "memory", "--api", url)[1])
    assert [job["job_id"] for job in chosen["jobs"]] == ["48230", "48211"]
    page = json.loads(run(capsys, "--json", "--job", "48211", "--api", url)[1])
    assert (len(page["ranks"]), [one["number"] for one in page["incidents"]]) == (16, [12])


def test_jobs_are_told_while_the_database_of_incidents_is_away(
    url: str, world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.store, "problem", "disk full")
    out = run(capsys, "--once", "--api", url)[1]
    assert "48211" in out
    assert out.endswith("incidents unavailable: the database of incidents and actions is unavailable: disk full\n")
    answer = json.loads(run(capsys, "--json", "--api", url)[1])
    assert (answer["incidents"], "disk full" in answer["incidents_problem"]) == (None, True)


def test_an_empty_cluster_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    with serving_world(World(())) as url:
        code, out, _ = run(capsys, "--api", url)
    assert (code, "no jobs watched" in out, "no open incidents" in out) == (0, True, True)


def test_a_job_that_is_not_watched_is_a_wrong_call(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("--once", "--json"):
        code, _, err = run(capsys, form, "--job", "4711", "--api", url)
        assert (code, "no watched job '4711'; `tidegauge jobs`" in err) == (2, True)


def test_without_a_service_it_says_how_to_start_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGAUGE_STATE_DIR", str(tmp_path))
    code, out, err = run(capsys)
    assert (code, out, "tidegauge up" in err) == (3, "", True)
    code, _, err = run(capsys, "--api", "http://127.0.0.1:1")
    assert (code, "no answer from http://127.0.0.1:1" in err) == (3, True)


def test_without_the_extra_it_names_the_command_that_installs_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    code, _, err = run(capsys)
    assert (code, "pip install 'tidegauge[agent]'" in err) == (3, True)


def test_top_imports_nothing_that_its_first_screen_can_do_without() -> None:
    """Ray, SQLAlchemy or torch alone would take longer than everything else until the first screen."""
    code = (
        "import sys, tidegauge.cli.main as m; m.build_parser('top');"
        "import tidegauge.cli.top.app, tidegauge.cli.top.plain, tidegauge.settings;"
        "import tidegauge.cluster.ray_service.service_control;"
        "print(*{name.partition('.')[0] for name in sys.modules},"
        " *(name for name in sys.modules if name.startswith('tidegauge.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=90)
    loaded = set(done.stdout.split())
    assert loaded >= {"textual", "pydantic", "tidegauge.cli.top.app"}
    assert loaded.isdisjoint({"ray", "sqlalchemy", "torch", "numpy", "matplotlib", "jinja2", "kubernetes", "yaml"})
    others = {"tidegauge.cli.demo.command", "tidegauge.cli.service.up", "tidegauge.cli.offline.estimate"}
    assert loaded.isdisjoint(others), "the other commands are imported when they are called"
