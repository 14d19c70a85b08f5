"""``tidegauge oom`` on the files below tests/data/oom."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegauge.cli.errors import ENVIRONMENT, FINE, USAGE
from tidegauge.cli.main import main

DATA = Path(__file__).parents[2] / "data" / "oom"
MIB, GIB = 1 << 20, 1 << 30
PIECES = str(DATA / "pieces.snapshot.pickle.gz")


class Run:
    """Runs the command and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def text(self, *arguments: object, expect: int = FINE) -> str:
        code = main(["oom", *map(str, arguments)])
        said = self._capsys.readouterr()
        assert code == expect, said.err
        return said.out if expect == FINE else said.err

    def json(self, *arguments: object) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.text(*arguments, "--json"))
        return answer


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def give(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(
        sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content)), isatty=lambda: False)
    )


def test_a_log_is_explained_with_the_line_that_asked(run: Run) -> None:
    text = run.text(DATA / "two_ranks.txt")
    assert text.startswith("allocated: an allocation of about 64.0 MiB failed")
    assert "  rank 1, GPU 1, allocation at /home/ada/lm/train.py:18 in tensor\n" in text
    assert "What to do:\n  - " in text


def test_the_keys_for_programs(run: Run) -> None:
    answer = run.json(DATA / "neighbour.txt")
    assert (answer["kind"], answer["retry"], answer["capped"]) == ("neighbour", True, False)
    assert answer["request_bytes"] == 64 * MIB
    assert answer["total_bytes"] == 8 * GIB
    assert answer["others_bytes"] == pytest.approx(5.49 * GIB, abs=0.01 * GIB)
    assert answer["place"] == {
        "filename": "/home/ada/lm/train.py",
        "line": 18,
        "function": "tensor",
        "code": 'return torch.empty(size_bytes, dtype=torch.uint8, device="cuda")',
    }
    assert (answer["owners"], answer["whatif"], answer["others"]) == (None, None, [])
    assert answer["sentence"].endswith(".")


def test_fragmentation_is_answered_with_the_line_for_this_torch(run: Run) -> None:
    assert run.json(DATA / "pieces.txt")["advice"][0] == "export PYTORCH_ALLOC_CONF=expandable_segments:True"
    older = run.json(DATA / "pieces.txt", "--torch-version", "2.9.1")
    assert older["advice"][0] == "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    oldest = run.json(
        "CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB already allocated; "
        "19.75 MiB free; 13.71 GiB reserved in total by PyTorch)"
    )
    assert "2.0 or older" in oldest["advice"][0]


def test_processes_that_hold_the_card_are_named(run: Run) -> None:
    text = run.text(DATA / "torch_2_1.txt")
    assert "Process 4242 holds about 3.0 GiB" in text
    assert "process 4242 (another process, or another rank) held about 3.0 GiB" in " ".join(text.split())
    assert "31337" not in text


def test_the_message_itself_may_be_given(run: Run) -> None:
    assert run.json((DATA / "torch_2_4.txt").read_text().strip())["kind"] == "cap"


def test_standard_input_is_read_plain_and_gzipped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (DATA / "outside.txt").read_bytes()
    for given in (content, gzip.compress(content)):
        give(monkeypatch, given)
        assert run.json("-")["kind"] == "outside_allocator"


def test_a_snapshot_by_standard_input_is_told_by_its_content(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, (DATA / "needed.oom.pickle.gz").read_bytes())
    assert run.json("-")["live_bytes"] > 7 * GIB


def test_the_snapshot_of_the_probe_says_what_was_refused_and_by_what_size_it_is_held(run: Run) -> None:
    answer = run.json(DATA / "needed.oom.pickle.gz")
    assert (answer["kind"], answer["request_bytes"], answer["free_bytes"]) == ("allocated", 64 * MIB, 52 * MIB)
    assert answer["approximate"] is False
    first = answer["owners"][0]
    assert (first["bytes"], first["blocks"], first["line"]) == (119 * 64 * MIB, 119, None)
    text = run.text(DATA / "needed.oom.pickle.gz")
    assert "as large as a workspace of cuBLAS" in text
    assert "_record_memory_history" in text


def test_a_snapshot_with_a_history_names_owners_and_what_would_have_helped(run: Run) -> None:
    answer = run.json(PIECES)
    assert (answer["kind"], answer["largest_free_bytes"]) == ("fragmentation", 31 * MIB)
    owner = answer["owners"][0]
    assert owner["line"]["filename"] == "/home/ada/lm/train.py"
    assert (owner["line"]["function"], owner["caller"]["function"]) == ("tensor", "pieces")
    assert owner["bytes"] == 100 * 33 * MIB
    whatif = answer["whatif"]
    assert whatif["trials"][0]["ooms"] == 0
    conf = whatif["trials"][0]["alloc_conf"]
    assert whatif["export_line"] == answer["advice"][0] == f"export PYTORCH_ALLOC_CONF={conf}"
    assert f"with the allocator setting {conf}, under which a replay of its history survives" in answer["sentence"]
    assert not any(advice.startswith("What each setting") for advice in answer["advice"])


def test_text_and_snapshot_are_explained_together(run: Run) -> None:
    answer = run.json(DATA / "pieces.txt", "--snapshot", PIECES)
    assert (answer["kind"], answer["approximate"]) == ("fragmentation", True)
    assert answer["largest_free_bytes"] == 31 * MIB
    assert answer["owners"]
    assert "(largest: 31.0 MiB)" in answer["sentence"]


def test_memory_in_private_pools_is_seen_in_a_snapshot(run: Run) -> None:
    answer = run.json(DATA / "pools.snapshot.pickle.gz")
    assert (answer["kind"], answer["private_free_bytes"]) == ("private_pools", 2 * GIB)


def test_the_first_of_several_is_explained_and_the_others_are_named(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.\n"
    log.write_text((DATA / "pieces.txt").read_text() + "\n" + (DATA / "two_ranks.txt").read_text() + killed)
    answer = run.json(log)
    assert answer["kind"] == "fragmentation"
    assert [(other["kind"], other["rank"]) for other in answer["others"]] == [("allocated", 1)]
    assert [seen["kind"] for seen in answer["elsewhere"]] == ["killed"]
    text = run.text(log)
    assert "First of 2 errors in the log" in text
    assert "OOM killer" in text


def test_other_memory_is_said_to_be_another_thing(run: Run) -> None:
    answer = run.json("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    assert answer["kind"] == "library"
    assert "PyTorch's allocator did not fail" in answer["sentence"]
    assert "did not fail" not in run.json(DATA / "nvml_fails.txt")["sentence"]


def test_refused_calls_without_an_error_are_explained_too(run: Run, tmp_path: Path) -> None:
    lines = [line for line in (DATA / "needed.txt").read_text().splitlines() if line.startswith("[W")]
    log = tmp_path / "log"
    log.write_text("\n".join(lines))
    assert run.json(log)["kind"] == "none"
    assert "2 device allocations failed without an out-of-memory error" in run.text(log)


def test_oom_without_a_message_says_what_it_searched_for(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("epoch 1\nepoch 2\n")
    assert "searched for 'CUDA out of memory'" in run.text(log, expect=USAGE)
    assert "neither a file nor an out-of-memory message" in run.text("nothing.log", expect=USAGE)
    assert "give a file" in run.text(expect=USAGE)


def test_a_hostile_pickle_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(b"\x80\x04cos\nsystem\n(S'touch " + str(tmp_path / "owned").encode() + b"'\ntR.")
    said = run.text(file, expect=USAGE)
    assert "os.system" in said
    assert str(file) in said
    assert not (tmp_path / "owned").exists()


def test_oom_strips_control_characters_of_a_log(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = (DATA / "pieces.txt").read_text()
    log.write_text(lines.replace("/home/ada/lm/train.py", "/home/ada/\x9b31m\u202etrain.py"))
    text = run.text(log)
    assert "\x9b" not in text
    assert "\u202e" not in text


def test_two_snapshots_are_one_too_many(run: Run) -> None:
    assert "two snapshots" in run.text(PIECES, "--snapshot", PIECES, expect=USAGE)


def test_damaged_gzip_is_said_to_be_so(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "job.log.gz"
    log.write_bytes(b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff" * 50)
    assert "cannot read " in run.text(log, expect=ENVIRONMENT)


def test_a_file_that_is_named_by_somebody_else_reaches_no_terminal(run: Run, tmp_path: Path) -> None:
    assert "\x1b" not in run.text(tmp_path / "\x1b[31mjob.log", expect=USAGE)
    odd = tmp_path / "\x1b[31mjob.pickle"
    odd.write_bytes(pickle.dumps({"segments": 3}))
    assert "\x1b" not in run.text(odd, expect=USAGE)


def test_a_history_in_which_nothing_fails_is_not_denied(run: Run, tmp_path: Path) -> None:
    block = {"address": 1 << 40, "size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated", "frames": []}
    segment = {
        "device": 0, "address": 1 << 40, "total_size": 2 * MIB, "stream": 0, "segment_type": "large",
        "is_expandable": False, "blocks": [block],
    }  # fmt: skip
    trace = [{"action": "alloc", "addr": 1 << 40, "size": 2 * MIB, "stream": 0, "time_us": 1}]
    path = tmp_path / "late.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [trace], "allocator_settings": {}}))
    text = run.text(path)
    assert "no request fails in its history" in text
    assert "it has no history" not in text


def test_oom_prints_no_advice_heading_without_advice(run: Run, tmp_path: Path) -> None:
    frames = [{"filename": "/home/ada/train.py", "line": 3, "name": "f"}]
    block = {"size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated", "frames": frames}
    segment = {"address": 1 << 40, "total_size": 2 * MIB, "stream": 0, "segment_type": "small", "blocks": [block]}
    path = tmp_path / "late.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    assert "What to do" not in run.text(path)


@pytest.mark.parametrize("at_the_refusal", [False, True])
def test_a_block_that_was_freed_after_the_error_is_not_held_against_pytorch(
    run: Run, tmp_path: Path, at_the_refusal: bool
) -> None:
    """A snapshot dumped in an ``except`` clause shows as free what the program's way out had freed."""
    block = {"size": 72 * MIB, "requested_size": 72 * MIB, "state": "inactive", "frames": []}
    segment = {"address": 1 << 40, "total_size": 72 * MIB, "stream": 0, "segment_type": "large", "blocks": [block]}
    trace = [{"action": "oom", "device_free": MIB, "size": 72 * MIB, "stream": 0, "time_us": 1}]
    facts = {"device": 0, "wanted_bytes": 72 * MIB, "free_bytes": MIB, "limit_bytes": GIB}
    path = tmp_path / "late.pickle"
    whole = {"segments": [segment], "device_traces": [trace], **({"tidegauge": facts} if at_the_refusal else {})}
    path.write_bytes(pickle.dumps(whole))
    text = " ".join(run.text(path).split())
    assert ("pytorch #189504" in text) is at_the_refusal
    assert ("the snapshot was taken after the error" in text) is not at_the_refusal


@pytest.mark.parametrize(("message", "doubted"), [("pieces.txt", False), ("neighbour.txt", True)])
def test_a_snapshot_of_another_process_is_doubted(run: Run, message: str, doubted: bool) -> None:
    text = run.text(DATA / message, "--snapshot", PIECES)
    assert ("The snapshot may not belong to this error" in text) is doubted


def test_an_empty_text_is_said_to_be_so(run: Run) -> None:
    assert "empty input" in run.text(" ", expect=USAGE)


def test_a_message_of_rocm_is_answered_with_its_own_variable(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text((DATA / "pieces.txt").read_text().replace("CUDA out of memory", "HIP out of memory"))
    assert "export PYTORCH_HIP_ALLOC_CONF=expandable_segments:True" in run.text(log, "--torch-version", "2.6.0")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_log_of_powershell_is_read(run: Run, tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "job.log"
    log.write_bytes(("\ufeff" + (DATA / "pieces.txt").read_text()).encode(encoding))
    assert run.json(log)["kind"] == "fragmentation"


@pytest.mark.parametrize(
    "line",
    [
        "[12.6] Out of memory: Killed process 812 (chrome) total-vm:1234kB",
        "[12.5] train.py invoked oom-killer: gfp_mask=0x1\n[12.6] oom-kill:constraint=NONE,task=chrome,pid=812,uid=0",
    ],
)
def test_whom_the_oom_killer_killed_is_told_and_whether_it_is_known_to_be_the_jobs(
    run: Run, tmp_path: Path, line: str
) -> None:
    log = tmp_path / "job.log"
    log.write_text(f"{line}\n")
    text = " ".join(run.text(log).split())
    assert "It killed chrome (pid 812), which no other line of the log names: it is not known to be the job's." in text
    log.write_text(f"(Worker pid=812, ip=10.0.0.1) step 3\n{line}\n")
    assert "chrome (pid 812), which other lines of the log name as well." in " ".join(run.text(log).split())


def test_a_snapshot_in_a_zip_bomb_is_refused(run: Run, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pickle.gz"
    bomb.write_bytes(gzip.compress(b"\x80\x04" + bytes(257 << 20)))
    assert "more than 256.0 MiB, which is more than is read" in run.text(bomb, expect=USAGE)
