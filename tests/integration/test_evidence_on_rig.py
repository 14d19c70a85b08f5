"""What tests/gpu/test_evidence.py does, rehearsed on the rig: from the command on a rank's socket to the cause. And the
walk of docs/researcher, with its own script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from evidence_checks import check_leak
from evidence_runs import EvidenceRun, run_leak, run_script
from fakegpu.rig import Rig
from matrix import in_turns
from tidegauge.core.evidence.brief import Confidence, EvidenceCause

pytestmark = pytest.mark.rig

RESEARCHER = Path(__file__).parents[2] / "docs" / "researcher"
SCRIPT = RESEARCHER / "leaky_train.py"
OOM_CASES = Path(__file__).parent / "rig_jobs" / "oom_cases.py"
NO_OPTIMIZER = Path(__file__).parent / "rig_jobs" / "no_optimizer.py"


@pytest.mark.parametrize(
    "name",
    in_turns(
        [
            "trainers_deque",
            "graphs_in_list",
            "saved_inputs",
            "kept_exception",
            "sample_beside_lengths",
            "autocast_cache",
            "ddp_buckets",
        ]
    ),
)
def test_line_holder_and_cause_are_found(name: str, rig: Rig, tmp_path: Path) -> None:
    environ = rig.environ(devices=1, state=tmp_path / "gpus")
    check_leak(run_leak(name, python=str(rig.python), environ=environ, run_dir=tmp_path / "run"), name)


def test_private_pools_that_pile_up_are_told_from_fragmentation(rig: Rig, tmp_path: Path) -> None:
    environ = rig.environ(devices=1, total_bytes=1 << 40, state=tmp_path / "gpus")
    command = [str(rig.python), str(OOM_CASES), "pool_each_step"]
    run = run_script(command, environ=environ, run_dir=tmp_path / "run")
    early, late = run.comparison.early_pools, run.comparison.late_pools
    assert early.pools < late.pools
    assert late.unused_bytes == late.reserved_bytes
    assert run.comparison.reserved_grown_bytes == late.reserved_bytes - early.reserved_bytes > 0
    assert run.cause.cause is EvidenceCause.CUDA_GRAPHS
    assert run.evidence.facts.cuda_graphs == 0
    line = run.comparison.pools_line
    assert line is not None
    assert "torch.empty(size_bytes" in OOM_CASES.read_text(encoding="utf-8").splitlines()[line.line - 1], line
    assert (run.cause.advice or "").endswith("`expandable_segments:True` does not help")


@pytest.mark.parametrize(
    ("loop", "holder", "cause"),
    [("by_hand", "seen", EvidenceCause.HOOK), ("inference", "features", EvidenceCause.PYTHON_CONTAINER)],
)
def test_a_leak_in_a_loop_without_an_optimizer_is_found(
    loop: str, holder: str, cause: EvidenceCause, rig: Rig, tmp_path: Path
) -> None:
    environ = rig.environ(devices=1, total_bytes=1 << 40, state=tmp_path / "gpus")
    run = run_script([str(rig.python), str(NO_OPTIMIZER), loop], environ=environ, run_dir=tmp_path / "run")
    assert run.evidence.problem is None
    texts = [NO_OPTIMIZER.read_text(encoding="utf-8").splitlines()[line - 1] for line in run.lines(NO_OPTIMIZER.name)]
    assert [text for text in texts if f"{holder}.append(" in text and "# LEAK" in text], run.comparison.lines[:3]
    assert holder in run.path
    assert (run.cause.cause, run.cause.confidence) == (cause, Confidence.NAMED), run.cause


def train(rig: Rig, tmp_path: Path, *flags: str, python: Sequence[str] = ()) -> EvidenceRun:
    # It keeps 32 MiB a step: 80 GiB would be full within a minute or two.
    environ = rig.environ(devices=1, total_bytes=1 << 40, state=tmp_path / "gpus")
    command = [str(rig.python), *python, str(SCRIPT), "--steps", "20000", *flags]
    return run_script(command, environ=environ, run_dir=tmp_path / "run")


def test_the_leak_of_the_researchers_walk_is_found_as_the_page_says(rig: Rig, tmp_path: Path) -> None:
    run = train(rig, tmp_path)
    page = (RESEARCHER / "one_leak.md").read_text(encoding="utf-8")
    (line,) = run.lines(SCRIPT.name)
    assert "softmax" in SCRIPT.read_text(encoding="utf-8").splitlines()[line - 1]
    assert f"{SCRIPT.name}:{line} in step" in page
    assert "trainer -> Trainer.certainties (list, " in run.path
    assert (run.cause.cause, run.cause.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)
    assert run.cause.advice is not None
    assert run.cause.advice in " ".join(page.replace("\n> ", "\n").split())


# Loops that collect garbage at steps of their own choice: what a window of evidence keeps, stays.
WITHOUT_COLLECTOR = (
    "import gc, runpy, sys; gc.disable(); sys.argv[:1] = []; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.mark.parametrize("python", [(), ("-c", WITHOUT_COLLECTOR)], ids=["collector", "no_collector"])
def test_the_fixed_line_leaks_nothing(python: Sequence[str], rig: Rig, tmp_path: Path) -> None:
    run = train(rig, tmp_path, "--fixed", python=python)
    assert run.comparison.grown_bytes <= 0
    assert run.cause.cause is EvidenceCause.UNKNOWN
    assert run.cause.advice is None
