"""The verdict of ``tidegauge run`` without a service, over rings that a process writes as the probe would."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fake_node import MIB, UUID0, FakeClock, FakeGpus, FakeRank, gpu_reading, identity
from sample_views import job_view
from tidegauge.cli.verdict.answer import (
    NO_EVIDENCE,
    NO_STEPS,
    JobAnswer,
    answer_lines,
    answer_of,
    default_report,
    figure_lines,
    live_lines,
    profile_lines,
    rank_lines,
    size_lines,
    try_report,
    verdict_sentence,
)
from tidegauge.cli.verdict.judge import Judge, ranks_of
from tidegauge.cli.verdict.process import VerdictProcess
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, JobKey, LocalRank, ProcessId
from tidegauge.core.job_records.end_words import size_advice
from tidegauge.core.job_records.record import record_of
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.samples import EventCode, OomRecord, RecordKind
from tidegauge.core.verdicts import OK, LeakState, Signal, Verdict
from tidegauge.core.views import RankView
from tidegauge.osproc.processes import identity_of
from tidegauge_exporter.links import Links

JOB = "job-of-the-test"
TESTS = Path(__file__).parents[2]
RANK = f"""
import os, sys, time
sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / "support")!r}]
from pathlib import Path
from collector.cli.test_verdict import write_ring
run_dir, job_id = Path(os.environ["TIDEGAUGE_RUN_DIR"]), os.environ["TIDEGAUGE_JOB_ID"]
write_ring(run_dir, os.getpid(), leak_bytes=int(sys.argv[1]), job_id=job_id)
while sys.argv[2] == "waits" and not Path("end").exists():
    time.sleep(0.05)
raise SystemExit(7)
"""


def write_ring(run_dir: Path, pid: int, *, rank: int = 0, leak_bytes: int = 0, job_id: str = JOB) -> None:
    """The ring of a process that has just done 2,000 steps of 10 ms."""
    writer = ring_of(run_dir, pid, rank=rank, job_id=job_id)
    for step in range(2000):
        writer.clock.pass_s(0.01)
        writer.record(step=step, allocated=4096 * MIB + step * leak_bytes)


def ring_of(run_dir: Path, pid: int, *, rank: int = 0, job_id: str = JOB, ago_s: float = 20.0) -> FakeRank:
    """An empty ring, whose first record will be of so long ago."""
    process = identity_of(pid)
    assert process is not None
    now_s = time.monotonic()
    clock = FakeClock(now_s=now_s - ago_s, unix_offset_s=time.time() - now_s)
    who = identity(
        job_id=JobId(job_id), rank=GlobalRank(rank), local_rank=LocalRank(rank), job_name="train", device_uuids=()
    )
    return FakeRank(run_dir, clock, process=process, capacity=4096, who=who)


def eventually(what: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 30
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.1)


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen(["sleep", "300"]) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    judge = Judge(ranks_of(JOB), run_dirs=[tmp_path])
    yield judge
    judge.close()


def judged(judge: Judge, run_dir: Path, processes: list[subprocess.Popen[bytes]]) -> JobAnswer:
    """A healthy rank 0, a leaking rank 1, and another job beside them; all have ended."""
    leaking, healthy, other = processes
    write_ring(run_dir, healthy.pid, rank=0)
    write_ring(run_dir, leaking.pid, rank=1, leak_bytes=4 * MIB)
    write_ring(run_dir, other.pid, leak_bytes=4 * MIB, job_id="another")
    judge.start()
    eventually(lambda: any(rank.verdict.state is LeakState.LEAK for rank in judge.ranks()))
    judge.look()
    for process in processes:
        process.kill()
        process.wait()
    judge.end()
    return answer_of(judge)


def test_the_growing_rank_of_the_job_is_named_first_and_no_other_jobs(
    judge: Judge, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    answer = judged(judge, tmp_path, processes)
    growing, nothing_found, healthy = answer_lines(answer)
    assert nothing_found == NO_EVIDENCE
    assert growing.startswith("rank 1: growing: allocated memory grows by 4.0 MiB a step")
    assert healthy == "rank 0: ok, 1,999 steps, peak 6.0 GiB reserved"
    assert not any(rank.alive for rank in answer.ranks)
    assert [line.about for line in live_lines(judge)] == ["rank 0", "rank 1"]
    report = default_report(answer, "job/1")
    assert report == Path("tidegauge-report-job-1.html")
    assert try_report(answer, tmp_path / report, job_name="train", command="python train.py") == (
        f"report: {tmp_path / report}"
    )
    page = (tmp_path / report).read_text()
    assert "Rank 1 grows" in page
    assert "python train.py" in page


def test_of_a_rank_that_was_started_again_the_peak_of_all_processes_and_the_last_ones_oom_are_told(
    judge: Judge, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """``bash -c "python a; python b"``: the first was the largest, the second ran out of memory."""
    for process, ago_s, steps, reserved in ((processes[0], 60.0, 30, 1536 * MIB), (processes[1], 30.0, 20, 300 * MIB)):
        writer = ring_of(tmp_path, process.pid, ago_s=ago_s)
        for step in range(1, steps + 1):
            writer.record(step=step, reserved=reserved)
        judge.read()
        if steps == 20:
            writer.record(kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, step=20, reserved=reserved)
        writer.record(kind=RecordKind.EVENT, event=EventCode.DETACHED, step=steps, reserved=reserved)
        process.kill()
        process.wait()
    judge.read()
    answer = answer_of(judge)
    assert answer_lines(answer) == ["rank 0: ended by OOM, 20 steps, peak 1.5 GiB reserved"]
    try_report(answer, tmp_path / "report.html", job_name="train", command="")
    assert "rank 0 at step 20" in (tmp_path / "report.html").read_text()


def test_a_growing_rank_that_ran_out_of_memory_is_said_to_have() -> None:
    rank = replace(
        healthy(0, 7),
        verdict=Verdict(LeakState.LEAK, signal=Signal.ALLOCATED, onset_step=3),
        last_oom=OomRecord(0.0, 7, 1, 1, 1, 1, 1),
    )
    assert rank_lines(rank, None) == ["rank 0: growing: allocated memory grows since step 3; ended by OOM at step 7"]


def test_a_report_that_cannot_be_written_is_named(
    judge: Judge, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    answer = judged(judge, tmp_path, processes)
    nowhere = tmp_path / "none" / "report.html"
    assert try_report(answer, nowhere, job_name="", command="").startswith(f"no report: cannot write {nowhere}")


def test_without_ranks_there_is_nothing_to_say_and_no_report(judge: Judge) -> None:
    judge.start()
    judge.end()
    answer = answer_of(judge)
    assert answer_lines(answer) == []
    assert default_report(answer, JOB) is None


def test_memory_outside_pytorch_is_known_of_a_rank_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]
) -> None:
    pid = processes[0].pid
    gpus = FakeGpus((gpu_reading(processes={pid: 4596 * MIB}),))
    monkeypatch.setattr("tidegauge.cli.verdict.judge._gpus", lambda: gpus)
    process = identity_of(pid)
    assert process is not None
    who = identity(job_id=JobId(JOB), device_uuids=(UUID0,))
    writer = FakeRank(tmp_path, FakeClock(now_s=time.monotonic() + 60.0), process=process, who=who)
    judge = Judge(ranks_of(JOB), run_dirs=[tmp_path])
    for step in range(3):
        writer.record(step=step, allocated=4096 * MIB, reserved=4096 * MIB)
        judge.read()
    processes[0].kill()
    processes[0].wait()
    gpus.readings = (gpu_reading(),)
    (rank,) = judge.read()
    judge.close()
    assert not rank.alive
    assert rank.nontorch_bytes == 500 * MIB
    assert rank.gpu_bytes == 80 << 30


def test_nothing_of_the_judge_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    judge = Judge(ranks_of(JOB), run_dirs=[tmp_path])
    judge.start()
    judge.end()
    judge.close()
    assert list((tmp_path / "temporary").iterdir()) == []


def healthy(number: int, step: int) -> RankView:
    return RankView(
        identity=identity(rank=GlobalRank(number)), process=ProcessId(100 + number, 1), uid=0, user_name="ada",
        gpu=None, uuid=None, step=step, allocated_bytes=MIB, reserved_bytes=number * MIB, nontorch_bytes=None,
        limit_bytes=1 << 30, host_rss_bytes=None, last_sample_unix_s=0.0, verdict=OK, alive=True,
    )  # fmt: skip


def test_steps_and_peak_of_ranks_that_are_alike_are_told_once() -> None:
    ranks = (healthy(0, 7), healthy(1, 8), healthy(2, 0))
    assert answer_lines(JobAnswer(ranks, {}, {})) == [
        "ranks 0 and 1: ok, 8 steps, peak 1.0 MiB reserved of 1.0 GiB",
        "rank 2: no steps, peak 2.0 MiB reserved of 1.0 GiB",
        NO_STEPS,
    ]


def test_the_end_line_of_a_profile_tells_the_fullest_rank_and_its_largest_categories() -> None:
    def profile(rank: RankView, *parts: int) -> RankProfile:
        held = dict(zip(list(Category), (part * MIB for part in parts)))
        return RankProfile(
            "p", JobKey("mine", 0, 0), int(rank.identity.rank), "here", rank.process, "warmed up", 0.0, 1000, 1002,
            allocated_bytes=sum(parts) * MIB, by_category=held,
        )  # fmt: skip

    ranks = (healthy(0, 7), healthy(1, 8), healthy(2, 9))
    assert profile_lines({}, ranks) == []
    found = {rank.process: profile(rank, *parts) for rank, parts in zip(ranks, [(9, 1), (10, 50, 20, 15, 5)])}
    a, b, c, d = (list(Category)[at].value for at in (1, 2, 3, 0))
    assert profile_lines(found, ranks) == [
        "memory profile: peak 100.0 MiB allocated of 1.0 GiB on rank 1 in steps 1,000 to 1,002 "
        f"({a} 50%, {b} 20%, {c} 15%, {d} 10%, …)"
    ]
    [line] = profile_lines({ranks[0].process: found[ranks[0].process]}, ranks)
    assert line.endswith(f"on rank 0 in steps 1,000 to 1,002 ({d} 90%, {a} 10%)")


def is_read_by_another(folder: Path) -> bool:
    """Whether a process other than its own has a ring below ``folder`` open."""
    for ring in folder.rglob("*.ring"):
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            with suppress(OSError):
                if link.readlink() == ring and not ring.name.startswith(f"{link.parts[2]}-"):
                    return True
    return False


class RunOfRank:
    """``tidegauge run`` of a command that writes a ring, in ``folder``, which has its own run directory.

    With ``waits`` the command goes on until ``end``. It always exits with 7.
    """

    def __init__(self, folder: Path, *flags: str, leak_bytes: int = 0, waits: bool = False) -> None:
        self._folder = folder
        self.lines: list[str] = []
        """Of standard error."""
        (folder / "run").mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGAUGE_", "SLURM_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidegauge", "run", *flags, "--", sys.executable, "-c", RANK, str(leak_bytes),
             "waits" if waits else "ends"],
            env={**kept, "TIDEGAUGE_RUN_DIR": str(folder / "run"), "TIDEGAUGE_JOB_ID": "mine"},
            cwd=folder, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read_until(self, words: str) -> None:
        """Read standard error until a line has ``words``."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line.rstrip("\n"))
            if words in line:
                return
        raise AssertionError(self.lines)

    def end(self) -> int:
        """Let the command end; the exit code."""
        (self._folder / "end").touch()
        self.lines += self._process.communicate(timeout=90)[1].splitlines()
        return self._process.returncode


def test_run_judges_its_own_job_and_keeps_the_exit_code(tmp_path: Path) -> None:
    run = RunOfRank(tmp_path, "--live", leak_bytes=4 * MIB, waits=True)
    run.read_until("grow")
    assert run.end() == 7
    assert run.lines[0] == "tidegauge: watching job mine (auto); verdict at the end"
    assert any(
        line.startswith("tidegauge: rank 0: growing: allocated memory grows by 4.0 MiB a step") for line in run.lines
    )
    assert run.lines[-1] == "tidegauge: report: tidegauge-report-mine.html"
    assert "Rank 0 grows" in (tmp_path / "tidegauge-report-mine.html").read_text()


def test_a_healthy_job_gets_one_line_and_a_report_only_where_one_is_wanted(tmp_path: Path) -> None:
    run = RunOfRank(tmp_path, "--live", waits=True)
    run.read_until("tidegauge: rank 0: step 1,999, 6.0 GiB reserved, ok")
    assert run.end() == 7
    assert run.lines[-1].startswith("tidegauge: rank 0: ok, 1,999 steps, peak 6.0 GiB")
    assert not list(tmp_path.glob("*.html"))


USED = [
    "tidegauge: rank 0: 1,999 steps, peak 6.0 GiB reserved",
    "tidegauge: `tidegauge job mine` has all of it",
]


def test_nothing_is_judged_where_a_service_watches_or_nobody_wants_it(tmp_path: Path) -> None:
    quick = RunOfRank(tmp_path, "--no-verdict")
    quick.end()
    assert quick.lines == ["tidegauge: watching job mine (auto); see `tidegauge jobs`"]
    watched = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(watched, fcntl.LOCK_SH)
    run = RunOfRank(tmp_path, "--report", "r.html")
    run.end()
    os.close(watched)
    assert run.lines[:2] == [
        "tidegauge: --report ignored (a service watches this job), see docs/run.md",
        "tidegauge: watching job mine (auto); see `tidegauge jobs`",
    ]
    used = [line.partition(" of 80.0 GiB")[0] for line in run.lines[2:]]
    assert used in ([], USED), "what it used, if its rank was seen in time, and no verdict"


def test_what_a_job_used_is_said_at_its_end_where_a_service_watches(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    watched = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(watched, fcntl.LOCK_SH)
    run = RunOfRank(tmp_path, waits=True)
    eventually(lambda: is_read_by_another(tmp_path / "run"))
    assert run.end() == 7
    os.close(watched)
    assert [line.partition(" of 80.0 GiB")[0] for line in run.lines] == [
        "tidegauge: watching job mine (auto); see `tidegauge jobs`",
        *USED,
    ]


def test_figures_of_a_job_that_was_started_again_are_said_to_be_of_its_last_attempt() -> None:
    rank = replace(healthy(0, 7), identity=identity(attempt=2))
    assert [line.partition(",")[0] for line in figure_lines([rank], job_id="mine", ran_s=5.0)] == [
        "attempt 2: rank 0: 7 steps",
        "`tidegauge job mine` has all attempts",
    ]


def test_what_a_job_used_ends_with_its_web_page_where_the_settings_have_it() -> None:
    links = Links(service_url="https://head.example")
    rank = replace(healthy(0, 7), identity=identity(attempt=2))
    last = figure_lines([rank], job_id="mine", ran_s=5.0, page=links.job_page)[-1]
    page = f"https://head.example/job?job_id=mine&attempt=2&uid={rank.uid}"
    assert last == f"`tidegauge job mine` has all attempts; web page: {page}"


@pytest.mark.parametrize(
    ("ran_s", "reserved", "told"),
    [
        (600.0, 9 << 30, "this job had 2 × 80.0 GiB, needed 9.0 GiB each at most in the last run; with a margin "
                         "(9.9 GiB) 1/8 of this GPU (MIG, or --gpu-share 1/8) would do"),
        (599.0, 9 << 30, None),
        (600.0, 70 << 30, None),
    ],
)  # fmt: skip
def test_what_the_next_run_could_ask_for_is_said_after_ten_minutes(
    ran_s: float, reserved: int, told: str | None
) -> None:
    full = replace(
        healthy(0, 7), reserved_bytes=reserved, limit_bytes=80 << 30, uuid=DeviceUuid("GPU-a"), nontorch_bytes=0
    )
    ranks = [full, replace(full, uuid=DeviceUuid("GPU-b"), reserved_bytes=1)]
    assert size_lines(ranks, ran_s=ran_s) == ([told] if told else [])
    unknown = "needed 11.0 GiB (2.0 GiB of it assumed for memory outside PyTorch) each at most"
    without = [replace(rank, nontorch_bytes=None) for rank in ranks]
    assert [unknown in line for line in size_lines(without, ran_s=ran_s)] == [True] * bool(told)
    ranks[1] = replace(full, last_oom=OomRecord(0.0, 7, 1, 1, 1, 1, 1))
    assert size_lines(ranks, ran_s=ran_s) == []


@pytest.mark.parametrize("gib", [((9, 0), (10, 1)), ((8, 1), (7, 4)), ((7, 4), (8, 1))])
def test_the_advice_at_the_end_is_that_of_the_record_of_the_same_job(gib: Sequence[tuple[int, int]]) -> None:
    ranks = [
        replace(healthy(number, 7), reserved_bytes=reserved << 30, limit_bytes=40 << 30, cap_fraction=0.5,
                nontorch_bytes=nontorch << 30, uuid=DeviceUuid(f"GPU-{number}"))
        for number, (reserved, nontorch) in enumerate(gib)
    ]  # fmt: skip
    job = job_view(ranks=tuple(rank.summary() for rank in ranks), running=False, rank_hostnames=())
    record = record_of([job], None, now_s=700.0)._replace(started_unix_s=0.0)
    assert size_lines(ranks, ran_s=700.0) == [f"this job {size_advice(record)}"]
    assert "had 2 × 40.0 GiB of a GPU of 80.0 GiB, needed 11.0 GiB each" in str(size_advice(record))


def test_a_service_that_begins_later_takes_over(tmp_path: Path) -> None:
    run = RunOfRank(tmp_path, "--live", waits=True)
    run.read_until("rank 0: step 1,999")
    watched = os.open(tmp_path / "run", os.O_RDONLY)
    fcntl.flock(watched, fcntl.LOCK_SH)
    run.read_until("tidegauge: a service watches this job now; see `tidegauge jobs`")
    run.end()
    os.close(watched)
    assert run.lines[-3] == "tidegauge: a service watches this job now; see `tidegauge jobs`"
    assert run.lines[-2].startswith("tidegauge: rank 0: 1,999 steps, peak 6.0 GiB reserved")


@pytest.mark.parametrize(("begins_after_s", "told"), [(float("inf"), b""), (0.0, b"ended\n")])
def test_of_a_command_that_is_over_at_once_no_verdict_is_asked(
    monkeypatch: pytest.MonkeyPatch, begins_after_s: float, told: bytes
) -> None:
    monkeypatch.setattr("tidegauge.cli.verdict.process.BEGIN_AFTER_S", begins_after_s)
    theirs, control = os.pipe()
    done, theirs_out = os.pipe()
    os.close(theirs_out)  # whoever judges has nothing more to say
    VerdictProcess(control, done).end()
    assert os.read(theirs, 100) == told
    os.close(theirs)


def test_a_folder_that_does_not_exist_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    run = RunOfRank(tmp_path, "--report", "none/r.html")
    assert run.end() == 2
    assert "does not exist" in "".join(run.lines)


@pytest.mark.parametrize(
    "module", ["tidegauge.cli.verdict.judge", "tidegauge.cli.verdict.answer", "tidegauge_exporter.reports.report"]
)
def test_a_base_install_is_enough(module: str) -> None:
    code = f"import {module}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    named = set(done.stdout.split()) - sys.stdlib_module_names
    assert {name for name in named if not name.startswith(("tidegauge", "_"))} == set()


def test_a_suspicion_doubts_that_growth_lasts_and_not_what_holds_it() -> None:
    suspected = Verdict(LeakState.SUSPECTED, signal=Signal.ALLOCATED, onset_step=7)
    assert verdict_sentence(suspected) == (
        "suspected: allocated memory grows since step 7; whether it lasts is not certain yet"
    )
