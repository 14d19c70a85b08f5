"""`tidegauge estimate`: what it prints, its exit codes, what it says when the estimate cannot be made."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from estimates import ESTIMATE
from tidegauge.cli.errors import CommandError
from tidegauge.cli.main import main
from tidegauge.cli.offline import estimate as command
from tidegauge.cli.offline.estimate import breakdown_rows, fit_rows, print_estimate
from tidegauge.core.wire import to_wire
from tidegauge.estimator.results import Fit, FitVerdict

SCRIPT = '#!/bin/sh\nexec {python} {script} "$@"\n'
"""Not the interpreter in ``#!``: the kernel takes no path with a space there, nor one of more than 255 bytes."""


def interpreter(tmp_path: Path, body: str) -> str:
    """Stands in for the environment's Python: gets the worker and the options, answers on stdout."""
    path, script = tmp_path / "python", tmp_path / "worker.py"
    script.write_text(f"import sys\n{body}\n")
    path.write_text(SCRIPT.format(python=shlex.quote(sys.executable), script=shlex.quote(str(script))))
    path.chmod(0o755)
    return str(path)


def answering(tmp_path: Path, answer: object) -> str:
    return interpreter(tmp_path, f"print({json.dumps(answer)!r})")


def test_the_number_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    print_estimate("train:build", ESTIMATE)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "train:build needs 4.7 GiB of device memory."
    assert lines[2] == "  peak at: step 2, backward, model.head: aten.mm"


def test_ranks_are_told_what_each_of_them_needs(capsys: pytest.CaptureFixture[str]) -> None:
    print_estimate("train:build", replace(ESTIMATE, world_size=8, strategy="fsdp2"))
    assert "device memory, each of 8 ranks (fsdp2)." in capsys.readouterr().out


def test_every_section_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    print_estimate("train:build", ESTIMATE)
    out = capsys.readouterr().out
    for text in ("does not fit", "optimizer state", "not tried: already used by the job", "1.00", "- Kernels and"):
        assert text in out


def test_the_batch_that_surely_fits_stands_beside_the_one_at_the_border() -> None:
    assert [row[-2:] for row in fit_rows(ESTIMATE.fits, ESTIMATE.largest_batches)] == [
        ("300", "about 331"),
        ("none", "-"),
    ]


def test_parts_are_sorted_and_the_empty_ones_left_out() -> None:
    rows = breakdown_rows(ESTIMATE.breakdown, ESTIMATE.device_bytes)
    assert [row[0] for row in rows[:2]] == ["activations", "optimizer state"]
    assert "NCCL" not in [row[0] for row in rows]
    assert len(rows[0][3]) == round(40 * 1500 / 4762)


@pytest.mark.parametrize(
    ("verdict", "gpu", "code"),
    [
        (FitVerdict.FITS, "h200", 0),
        (FitVerdict.TOO_CLOSE, "h200", 1),
        (FitVerdict.DOES_NOT_FIT, "h200", 1),
        (FitVerdict.DOES_NOT_FIT, None, 0),
    ],
)
def test_estimate_exit_code_reports_a_misfit_only_for_a_requested_gpu(
    verdict: FitVerdict, gpu: str | None, code: int
) -> None:
    estimate = replace(ESTIMATE, fits=(Fit("h200", 1, verdict, 0.0, "measured"),))
    assert command.exit_code(estimate, gpu) == code


def test_json_is_the_estimate_of_the_other_interpreter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = answering(tmp_path, {"estimate": to_wire(ESTIMATE)})
    assert main(["estimate", "train:build", "--json", "--python", python]) == 0
    assert json.loads(capsys.readouterr().out) == to_wire(ESTIMATE)


def test_annotation_says_what_a_rank_needs_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimate = replace(ESTIMATE, device_bytes=(61 << 30) + 1)
    python = answering(tmp_path, {"estimate": to_wire(estimate)})
    assert main(["estimate", "train:build", "--python", python, "--annotation"]) == 0
    assert capsys.readouterr().out == f"tidegauge.dev/needed-gpu-memory: {61 * 1024 + 1}Mi\n"


def test_the_options_reach_the_other_interpreter(tmp_path: Path) -> None:
    body = "import json; print(json.dumps({'estimate': json.loads(sys.argv[2])}))"
    told = command.ask(interpreter(tmp_path, body), {"function": "train:build", "gpu": "h200"})
    assert told == {"function": "train:build", "gpu": "h200"}


def test_without_torch_it_says_so_and_how_to_name_another_interpreter(capsys: pytest.CaptureFixture[str]) -> None:
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
        pytest.skip("this interpreter has torch")
    assert main(["estimate", "train:build"]) == 3
    said = capsys.readouterr().err
    assert f"{sys.executable} cannot import torch" in said
    assert "--python PATH/TO/ENVIRONMENT/bin/python" in said


def test_an_error_in_the_function_is_the_callers_to_mend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = answering(tmp_path, {"problem": "function", "message": "  File train.py, line 3\nKeyError: 'x'"})
    assert main(["estimate", "train:build", "--python", python]) == 2
    said = capsys.readouterr().err
    assert "train:build failed without a GPU" in said
    assert "KeyError: 'x'" in said


def test_an_interpreter_that_dies_is_told_with_its_signal(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "import os; os.abort()")
    with pytest.raises(CommandError, match="ended with signal 6 and no result") as caught:
        command.ask(python, {"function": "train:build"})
    assert caught.value.exit_code == 3


def test_a_path_that_is_no_interpreter_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "train:build", "--python", "/nonexistent/python"]) == 2
    assert "/nonexistent/python: cannot be run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu", "h300"], "unknown GPU 'h300': choose one of"),
        (["--world-size", "0"], "is not a whole number above 0"),
        (["--strategy", "zero9"], "invalid choice"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["estimate", "train:build", *arguments])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_sharding_needs_a_number_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "train:build", "--strategy", "ddp"]) == 2
    assert "needs --world-size N" in capsys.readouterr().err
