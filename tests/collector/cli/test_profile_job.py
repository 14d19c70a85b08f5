"""``tidegauge profile JOB``: a job's ranks side by side, the fullest in full, and ranks that are asked now."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import pytest

from estimates import ESTIMATE
from loop_store import FakeStore, serving
from rank_profiles import STEADY, advised_profile, rank_profile
from sample_views import GIB, MIB, NOW_S, job_record, job_view
from slow_work import slow_terminal
from tidegauge.analysis.profile.profile import profile_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.cli.jobs.history import MAX_ENDED
from tidegauge.cli.main import main
from tidegauge.cli.output import narrowed, plain_lines
from tidegauge.cli.profile.job import ranks_table
from tidegauge.cli.profile.outside import OutsideKind, outside_parts
from tidegauge.cluster.views import AskedProfile, AskState, ProfileProblem
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.imbalance import Imbalance
from tidegauge.core.profile.rank_profile import RankProfile, parts_of
from tidegauge.core.wire import to_wire
from tidegauge.http.door_start import open_door
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings
from tidegauge_exporter.reports.job_profile_page import MAX_RANKS_IN_FULL, ranks_in_full

CURRICULUM = STEADY.with_name("curriculum.late.snap.zst")
STATUS = LoopStatus("observe", None)
JOB = job_view().key
EMPTIER = {"allocated_bytes": 100 * MIB, "by_category": {Category.PARAMETERS: 60 * MIB, Category.OTHER: 40 * MIB}}


@dataclass
class Ranks:
    """``ProfileAsks``: each look finds them further on, until what came of it is in the store."""

    store: FakeStore
    comes: dict[int, RankProfile | str] = field(default_factory=dict)
    """By rank: its profile, or why there is none."""
    known: dict[int, AskedProfile] = field(default_factory=dict)
    looks: int = 0

    def ask(self, job: JobKey, ranks: Collection[int]) -> Sequence[AskedProfile]:
        for rank in ranks or self.comes:
            self.known[rank] = AskedProfile(rank, f"new-{rank}", AskState.ASKING, NOW_S)
        return list(self.known.values())

    def asked(self, job: JobKey) -> Sequence[AskedProfile]:
        self.looks += 1
        for rank, one in self.known.items():
            came = self.comes[rank]
            if self.looks == 1:
                self.known[rank] = one._replace(state=AskState.RECORDING)
            elif isinstance(came, str):
                self.known[rank] = one._replace(state=AskState.FAILED, problem=came)
            else:
                self.known[rank] = one._replace(state=AskState.DONE)
                self.store.profiles.kept = [*(kept for kept in self.store.profiles.kept if kept.rank != rank), came]
        return list(self.known.values())

    def problems(self) -> Sequence[ProfileProblem]:
        return ()


@pytest.fixture
def store() -> FakeStore:
    store = FakeStore()
    store.profiles.kept = [rank_profile(0, job=JOB, **EMPTIER), rank_profile(1, job=JOB)]
    return store


@pytest.fixture
def ranks(store: FakeStore) -> Ranks:
    return Ranks(store)


@pytest.fixture
def api(store: FakeStore, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    token, file = make_token(), tmp_path / "tokens"
    file.write_text(token_line("boss", token))
    file.chmod(0o600)
    monkeypatch.setenv("TIDEGAUGE_API_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    door = open_door(Settings(api_tokens_file=file, api_admins="boss"), what="a test")
    with serving(store, STATUS, door, jobs=(job_view(),), asks=ranks) as url:
        yield ["--api", url]


def test_the_fullest_rank_comes_in_full_and_all_side_by_side(
    api: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "4711", *api]) == 0
    printed = capsys.readouterr().out
    assert "Job 4711, rank 1 on node0, the fullest of 2 ranks with a profile; steps 100 to 102" in printed
    assert "Peak: 271.5 MiB allocated in the forward pass" in printed
    table = printed[printed.index("Allocated at the peak of each rank") :].splitlines()
    assert table[1].split()[:5] == ["rank", "host", "phase", "peak", "activations"]
    assert table[2].split()[:6] == ["0", "node0", "forward", "100.0", "MiB", "0"]
    assert table[3].split()[:7] == ["1", "node0", "forward", "271.5", "MiB", "82.1", "MiB"]
    assert "A higher peak may lie before it" not in printed  # the steps that it is of are told


def test_a_rank_that_has_more_than_its_peers_is_told_with_its_cause(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "4711", *api]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Rank 1 has 171.5 MiB more than the median, 171% (271.5 MiB against 100.0 MiB of rank 0): " in printed
    assert main(["profile", "4711", "--json", *api]) == 0
    uneven = json.loads(capsys.readouterr().out)["imbalance"]
    assert (uneven["ranks"]["rank"], uneven["ranks"]["peer"]) == (1, 0)
    assert uneven["sentence"] in printed


def test_what_would_help_the_fullest_rank_is_told_as_for_a_file(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    advised = rank_profile(1, job=JOB, **parts_of(advised_profile(ranks=8, limit_bytes=139 * GIB)))
    store.profiles.kept = [rank_profile(0, job=JOB, **EMPTIER), advised]
    assert main(["profile", "4711", *api]) == 0
    printed = capsys.readouterr().out
    told = printed[printed.index("What would help, each by itself") :]
    assert told.splitlines()[1].startswith("- Checkpoint the 4 blocks (scenarios.py:32): the peak falls from 271.5 MiB")
    assert "A smaller card would do: MIG 1g.5gb" in " ".join(told.split())
    assert main(["profile", "4711", "--json", *api]) == 0
    advice = json.loads(capsys.readouterr().out)["profile"]["advice"]
    assert advice["measures"][0]["measure"] == "activation checkpointing"


def test_what_lies_outside_pytorch_is_told_by_kind_and_source(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = {"world_size": 2, "process_outside_bytes": 2000 * MIB, "other_processes_bytes": 800 * MIB}
    store.profiles.kept = [rank_profile(0, job=JOB, **outside, other_jobs_bytes=300 * MIB)]
    assert main(["profile", "4711", *api]) == 0
    printed = capsys.readouterr().out
    table = printed[printed.index("Outside PyTorch on its GPU") :].splitlines()[2:7]
    assert [" ".join(row.split()) for row in table] == [
        "CUDA context, kernels, cuBLAS, cuDNN 762.0 MiB expected from tables: up to 762.0 MiB",
        "NCCL 844.0 MiB expected from tables: up to 844.0 MiB",
        "other 394.0 MiB measured: the rest",
        "other processes 500.0 MiB measured: NVML",
        "other jobs 300.0 MiB measured: NVML",
    ]
    assert main(["profile", "4711", "--json", *api]) == 0
    [rank] = json.loads(capsys.readouterr().out)["ranks"]
    assert sum(part["bytes"] for part in rank["outside"][:3]) == rank["process_outside_bytes"] == 2000 * MIB


def test_rows_without_any_bytes_are_left_out(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = {"world_size": 1, "process_outside_bytes": 100 * MIB, "other_processes_bytes": 0}
    store.profiles.kept = [rank_profile(0, job=JOB, **outside)]
    assert main(["profile", "4711", *api]) == 0
    printed = capsys.readouterr().out
    table = printed[printed.index("Outside PyTorch on its GPU") :].split("\n\n")[0].splitlines()
    assert [row.partition("  ")[0] for row in table[2:]] == ["CUDA context, kernels, cuBLAS, cuDNN"]


def test_another_process_on_the_gpu_is_not_told_as_the_ranks_own(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = {"process_outside_bytes": 500 * MIB, "other_processes_bytes": 0}
    fuller = {**outside, "other_processes_bytes": 900 * MIB}
    store.profiles.kept = [rank_profile(0, job=JOB, **outside), rank_profile(1, job=JOB, **fuller)]
    assert main(["profile", "4711", *api]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("The GPU of rank 1, with other processes, has 900.0 MiB more than the median, 117% ")
    assert "of rank 0): those other processes hold 900.0 MiB more on it, by NVML. If they are another job's, " in said


def test_tables_expect_no_more_than_was_measured(store: FakeStore) -> None:
    one = rank_profile(0, world_size=1, process_outside_bytes=100 * MIB)
    assert [(part.name, part.bytes) for part in outside_parts(one)] == [
        (OutsideKind.CONTEXT, 100 * MIB),
        (OutsideKind.OTHER, 0),
    ]
    assert outside_parts(rank_profile(0)) == ()


def test_an_estimate_stands_beside_the_fullest_rank(
    api: list[str], store: FakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.profiles.kept = [rank_profile(0, job=JOB, process_outside_bytes=700 * MIB)]
    file = tmp_path / "estimate.json"
    file.write_text(json.dumps(to_wire(ESTIMATE)), encoding="utf-8")
    assert main(["profile", "4711", "--estimate", str(file), *api]) == 0
    assert "outside PyTorch 762.0 MiB 700.0 MiB -62.0 MiB" in " ".join(capsys.readouterr().out.split())
    assert main(["profile", "4711", "--estimate", str(file), "--json", *api]) == 0
    assert json.loads(capsys.readouterr().out)["estimate"][-1]["profile_bytes"] == 700 * MIB


def test_equal_ranks_are_not_compared(api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.profiles.kept = [rank_profile(rank, job=JOB) for rank in range(3)]
    assert main(["profile", "4711", "--json", *api]) == 0
    assert json.loads(capsys.readouterr().out)["imbalance"] is None


def test_chosen_ranks_alone_are_shown(api: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "4711", "--ranks", "1", *api]) == 0
    assert "rank 1 on node0, the only rank with a profile" in capsys.readouterr().out
    assert main(["profile", "4711", "--ranks", "1,7", *api]) == 3
    assert "rank 7 of job 4711 has no memory profile; there are those of 0, 1" in capsys.readouterr().err


def test_as_json_it_has_all_ranks_and_the_fullest_whole(api: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "4711", "--json", *api]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["job"]["job_id"], answer["rank"]) == ("4711", 1)
    assert answer["ranks"][0]["allocated_bytes"] == 100 * MIB
    assert answer["ranks"][1]["allocated_bytes"] == answer["profile"]["peak"]["allocated_bytes"]
    assert len(answer["profile"]["lines"]) == 15


def written_page(api: list[str], folder: Path, *arguments: str) -> str:
    assert main(["profile", "4711", "--html", str(folder / "p.html"), *arguments, *api]) == 0
    return (folder / "p.html").read_text(encoding="utf-8")


def test_while_the_ranks_of_a_page_are_read_it_is_said_once(
    api: list[str], store: FakeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.profiles.kept = [rank_profile(rank, job=JOB) for rank in range(MAX_RANKS_IN_FULL)]
    told, read = slow_terminal(monkeypatch), list[str]()
    of_rank = store.profiles.of_rank

    def slow(job: JobKey, rank: int) -> RankProfile | None:
        read.append(told()[-1])
        return of_rank(job, rank)

    monkeypatch.setattr(store.profiles, "of_rank", slow)
    written_page(api, tmp_path)
    assert read == ["tidegauge: reading the profiles of job 4711 …"] * MAX_RANKS_IN_FULL
    assert told() == ["tidegauge: waiting for the coordinator …", read[0]]
    assert main(["profile", "diff", "4711:0", "4711:1", *api]) == 0
    assert read[MAX_RANKS_IN_FULL:] == ["tidegauge: waiting for the coordinator …"] * 2


def test_its_page_has_what_the_terminal_shows(
    api: list[str], store: FakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    advised = parts_of(advised_profile(ranks=8, limit_bytes=139 * GIB))
    store.profiles.kept = [
        rank_profile(0, job=JOB, process_outside_bytes=700 * MIB, **EMPTIER),
        rank_profile(1, job=JOB, process_outside_bytes=800 * MIB, problems=("its ring was full",), **advised),
    ]
    estimate = tmp_path / "estimate.json"
    estimate.write_text(json.dumps(to_wire(ESTIMATE)), encoding="utf-8")
    page = written_page(api, tmp_path, "--estimate", str(estimate), "--json")
    uneven = json.loads(capsys.readouterr().out)["imbalance"]
    for words in (
        "Rank 1 is the fullest of 2: 271.5 MiB at the peak",
        escape(uneven["sentence"]),
        "Outside PyTorch on its GPU",
        "expected from tables: up to 762.0 MiB",
        "Estimate and profile",
        "Checkpoint the 4 blocks (scenarios.py:32)",
        "A smaller card would do: MIG 1g.5gb",
        "Rank 1: its ring was full.",
    ):
        assert words in page
    assert [int(rank) for rank in re.findall('<div class="of-rank" data-rank="([0-9]+)">', page)] == [1, 0]


def test_of_many_ranks_the_page_has_some_in_full_and_says_which(
    api: list[str], store: FakeStore, tmp_path: Path
) -> None:
    store.profiles.kept = [
        rank_profile(
            rank, job=JOB, allocated_bytes=(300 + rank) * MIB, by_category={Category.OTHER: (300 + rank) * MIB}
        )
        for rank in range(40)
    ]
    page = written_page(api, tmp_path)
    there = [int(rank) for rank in re.findall('<div class="of-rank" data-rank="([0-9]+)">', page)]
    assert (there[0], there[-1], len(there)) == (39, 0, MAX_RANKS_IN_FULL)
    assert f"Of 40 ranks, {MAX_RANKS_IN_FULL} are here in full: the fullest, the emptiest" in page
    assert page.count("<li ") == 40
    chosen = [int(rank) for rank in re.findall('data-rank="([0-9]+)"', written_page(api, tmp_path, "--ranks", "3,4"))]
    assert set(chosen) == {3, 4}


def test_both_ranks_of_an_imbalance_are_in_full() -> None:
    found = [rank_profile(rank, allocated_bytes=1000 - rank) for rank in range(256)]
    uneven = Imbalance(7, 101, 2, 1, ())
    chosen = [one.rank for one in ranks_in_full(found, uneven)]
    assert len(chosen) == len(set(chosen)) == MAX_RANKS_IN_FULL
    assert {0, 7, 101, 255} <= set(chosen)
    assert chosen[0] == 0


def test_a_rank_whose_profile_cannot_be_read_leaves_the_page_without_it(
    api: list[str], store: FakeStore, tmp_path: Path
) -> None:
    store.profiles.kept = [rank_profile(0, job=JOB), rank_profile(1, job=JOB, packed="!")]
    page = written_page(api, tmp_path)
    assert "Rank 1 is not here in full: the profile of rank 1 cannot be read" in page
    assert page.count('class="of-rank"') == 1


def test_the_last_one_is_that_of_the_newest_profile(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.profiles.kept.append(rank_profile(5, job=JobKey("ended", 2, 7)))
    assert main(["profile", "--last", *api]) == 0
    assert "Job ended (attempt 2), rank 5" in capsys.readouterr().out
    assert main(["profile", "ended", *api]) == 0, "a job that ended, by its id"


def test_a_job_that_ended_goes_by_the_name_that_jobs_lists(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer, bare = (JobKey(job_id, 0, 1001) for job_id in ("run-1", "run-2", "run-3"))
    store.jobs.records = [
        job_record(job=key, job_name="sweep", ended_unix_s=NOW_S + at_s)
        for at_s, key in enumerate((older, newer, bare))
    ]
    store.profiles.kept += [rank_profile(3, job=older), rank_profile(4, job=newer, at_unix_s=NOW_S + 9.0)]
    assert main(["profile", "sweep", *api]) == 0
    printed = capsys.readouterr()
    assert "Job run-2, rank 4" in printed.out
    assert "3 jobs have the name 'sweep'; this is run-2, others are run-3, run-1" in printed.err
    assert main(["profile", "run-1", *api]) == 0
    printed = capsys.readouterr()
    assert "Job run-1, rank 3" in printed.out
    assert "have the name" not in printed.err
    assert main(["profile", "run-3", *api]) == 3
    assert "job run-3 has no memory profile yet" in capsys.readouterr().err


def test_a_job_that_ended_long_ago_is_found_by_its_name_and_by_its_task(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    key = JobKey("run-1", 2, 1001)
    store.jobs.records = [
        job_record(job=key, job_name="sweep (long)", array="77_4", ended_unix_s=NOW_S - 1e6),
        *(job_record(job=JobKey(f"other-{number}", 0, 1001), job_name="other") for number in range(MAX_ENDED)),
    ]
    store.profiles.kept += [rank_profile(3, job=key)]
    for name in ("sweep (long)", "77_4", "run-1 (77_4, attempt 2)"):
        assert main(["profile", name, *api]) == 0
        assert "rank 3" in capsys.readouterr().out


def test_a_workload_of_kubernetes_goes_by_its_name_with_a_slash(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.profiles.kept.append(rank_profile(5, job=JobKey("research/ppo-4", 0, 7)))
    assert main(["profile", "research/ppo-4", *api]) == 0
    assert "Job research/ppo-4, rank 5" in capsys.readouterr().out
    assert main(["profile", "diff", "research/ppo-4:5", "4711:1", *api]) == 0
    assert "Before: job research/ppo-4, rank 5" in capsys.readouterr().out


def test_two_ranks_two_jobs_and_a_job_and_a_snapshot_are_compared(
    api: list[str], store: FakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = JobKey("ended", 0, 7)
    larger = parts_of(profile_of(open_trace(CURRICULUM)))
    store.profiles.kept = [
        rank_profile(0, job=JOB),
        rank_profile(1, job=JOB, problems=("its ring was full",), **larger),
        rank_profile(0, job=other),
    ]
    page = tmp_path / "diff.html"
    assert main(["profile", "diff", "4711:0", "4711:1", "--html", str(page), *api]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Before: job 4711, rank 0 on node0. After: job 4711, rank 1 on node0." in printed
    assert "The peak is 228.2 MiB higher (+84.0%): 271.5 MiB before, 499.7 MiB after." in printed
    assert "activations 82.1 MiB 246.5 MiB +164.4 MiB" in printed
    assert "Of job 4711, rank 1 on node0: its ring was full." in printed
    assert "job 4711, rank 1 on node0" in page.read_text(encoding="utf-8")
    assert main(["profile", "diff", "ended", "4711", "--json", *api]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert (compared["before"], compared["after"]) == ("job ended, rank 0 on node0", "job 4711, rank 1 on node0")
    assert main(["profile", "diff", "4711", str(STEADY), "--fail-if-peak-grows", "2%", *api]) == 0
    assert main(["profile", "diff", str(STEADY), "4711", "--fail-if-peak-grows", "2%", *api]) == 1
    assert main(["profile", "diff", "4711:7", str(STEADY), *api]) == 3
    assert "rank 7 of job 4711 has no memory profile; there are those of 0, 1" in capsys.readouterr().err


def test_ranks_that_are_asked_now_are_waited_for(
    api: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks.comes = {0: rank_profile(0, job=JOB, profile_id="new-0", ended_step=902)}
    assert main(["profile", "4711", "--ranks", "0", "--now", *api]) == 0
    printed = capsys.readouterr()
    assert "steps 100 to 902" in printed.out
    assert "0 of 1 ranks done; 1 recording" in printed.err


def test_a_rank_that_refuses_says_why_and_the_others_are_shown(
    api: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks.comes = {0: rank_profile(0, job=JOB, ended_step=902), 1: "evidence is being recorded"}
    assert main(["profile", "4711", "--now", *api]) == 0
    assert "rank 1 has no new profile: evidence is being recorded" in capsys.readouterr().out


def test_ranks_that_all_refuse_are_an_error(api: list[str], ranks: Ranks, capsys: pytest.CaptureFixture[str]) -> None:
    ranks.comes = {0: "busy", 1: "busy"}
    assert main(["profile", "4711", "--now", *api]) == 3
    assert "no rank of job 4711 recorded a profile now" in capsys.readouterr().err


def test_a_job_without_a_profile_says_when_there_will_be_one(
    api: list[str], store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store.profiles.kept.clear()
    for what in (["4711"], ["--last"]):
        assert main(["profile", *what, *api]) == 3
        assert "once they are past their warm-up" in capsys.readouterr().err


def test_a_name_that_is_a_file_here_is_that_file(
    api: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "4711").write_bytes(STEADY.read_bytes())
    assert main(["profile", "4711", *api]) == 0
    printed = capsys.readouterr().out
    assert "Job" not in printed
    assert "3,000 events" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a job or a snapshot, or use --last"),
        (["4711", "--last"], "name a job or a snapshot, or use --last"),
        (["--last", "--now"], "--now needs a job"),
        (["4711", "--device", "1"], "are about snapshots"),
        (["nowhere"], "nowhere is neither a file nor a job"),
        (["missing.pickle"], "missing.pickle"),
        ([str(STEADY), "--now"], "about a job, not about snapshots"),
        (["diff", "4711", "4711", "--now"], "diff takes a rank of a job as JOB:RANK"),
        (["diff", "4711", "nowhere"], "nowhere is neither a file nor a job"),
        (["diff", "4711", "4711", "--device", "0"], "name a rank as JOB:RANK"),
        (["diff", "4711"], "either may be a JOB, or a rank of it"),
    ],
)
def test_what_makes_no_sense_is_refused(
    api: list[str], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments, *api]) == 2
    assert words in capsys.readouterr().err


def test_a_name_without_its_ending_is_told_with_the_file(
    api: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "snapshot.pickle").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "snapshot", *api]) == 2
    assert "snapshot is neither a file nor a job" in (told := capsys.readouterr().err)
    assert told.endswith("`tidegauge jobs` lists jobs; there is snapshot.pickle\n")
    assert main(["profile", "snapshot", "--api", "http://127.0.0.1:9"]) == 3
    told = capsys.readouterr().err
    assert "snapshot is no file here; there is snapshot.pickle; to look for a job of that name: " in told


@pytest.mark.parametrize("ranks_text", ["a", "1;2", ""])
def test_ranks_are_numbers(ranks_text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["profile", "4711", "--ranks", ranks_text])
    assert "are not ranks, such as 0,3" in capsys.readouterr().err


@pytest.mark.parametrize(("width", "categories"), [(40, 2), (80, 4), (200, 6)])
def test_the_table_of_ranks_keeps_whole_words_and_the_largest_categories_on_a_narrow_terminal(
    width: int, categories: int
) -> None:
    table = ranks_table([rank_profile(rank) for rank in range(20)])
    header, rows = narrowed(table.header, table.rows, table.gives_way, width)
    assert max(map(len, plain_lines(header, rows))) <= width
    shown = [name for name in header if name in {one.value for one in Category}]
    assert len(shown) == categories
    largest = [category.value for category, _ in rank_profile().profile().peak.largest_first]
    assert shown == largest[: len(shown)]
