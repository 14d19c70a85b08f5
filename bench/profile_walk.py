"""One job from its first profile to a smaller peak: the advice is applied piece by piece, and measured each time.

    python bench/profile_walk.py OUT --on gpu
    .venv/bin/python bench/profile_walk.py OUT --on rig

The job is a GPT of 120 million parameters (bench/profile_advice.py) in fp32 with AdamW, whose loop calls `zero_grad()`
before the backward pass. It is profiled, the measure that saves most of those that this script can apply is applied, it
is profiled again, and so on. Each run is a process of its own. Prints the first and the last profile, the comparison of
each two, and a table of predicted and measured savings with the time of a step in times of the first; writes snapshots
and figures to OUT. Exits with 1 if a run fails. On the rig no kernel computes: the time is that of launching.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profile_advice import MEASURES, Case, Job
from profile_sums import ROOT, place, timed

WARM_UP_STEPS, PROFILED_STEPS, TIMED_STEPS = 3, 2, 20
AUTOCAST = "autocast"
APPLICABLE = {told: name for name, told in MEASURES.items() if "sharded" not in name} | {"HALF_ACTIVATIONS": AUTOCAST}
"""What a job of one rank can do, by the names of the advice."""
MAX_MEASURES = 4
TIMEOUT_S = 300.0


def one_run(measures: list[str], snapshot: Path) -> dict[str, Any]:
    """Trains the job with these measures, and profiles two steps of it."""
    import torch

    import tidegauge

    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=200_000)
    case = Case("", "gpt", amp=AUTOCAST in measures, zero_grad="before backward")
    job = Job(torch, case, *measures)
    for _ in range(WARM_UP_STEPS):
        job.step()
    torch.cuda.reset_peak_memory_stats()
    with tidegauge.profile(job.model, job.optimizer) as profiled:
        for _ in range(PROFILED_STEPS):
            job.step()
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.memory._dump_snapshot(str(snapshot))
    torch.cuda.memory._record_memory_history(None)
    if profiled.problem is not None:
        return {"problem": profiled.problem}
    return {
        "parameters": sum(one.numel() for one in job.model.parameters()),
        "peak_bytes": peak,
        "told_bytes": profiled.peak.allocated_bytes,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "step_ms": min(timed(torch, job.step) for _ in range(TIMED_STEPS)) * 1e3,
        "advice": [{**one._asdict(), "measure": one.measure.name} for one in profiled.advice.measures],
        "page": str(profiled),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }


def walked(command: list[str], environ: Mapping[str, str], out: Path) -> list[dict[str, Any]]:
    """The runs, each with one measure more than the one before."""
    applied: list[str] = []
    runs: list[dict[str, Any]] = []
    while True:
        run = _run(command, environ, applied, out / f"{len(applied)}.pickle")
        runs.append({**run, "applied": applied[-1] if applied else None})
        print(f"{len(applied)}: {', '.join(applied) or 'as it was'}", file=sys.stderr)
        left = [one for one in run.get("advice", ()) if APPLICABLE.get(one["measure"], "") not in ("", *applied)]
        if not left or len(applied) == MAX_MEASURES:
            return runs
        runs[-1]["next"] = left[0]
        applied.append(APPLICABLE[left[0]["measure"]])


def _run(command: list[str], environ: Mapping[str, str], applied: list[str], snapshot: Path) -> dict[str, Any]:
    asked = [*command, "--measures", json.dumps(applied), "--snapshot", str(snapshot)]
    done = subprocess.run(asked, env=dict(environ), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(answers[-1]) if answers else {"problem": (done.stderr.strip() or "no answer")[-600:]}


def show(runs: list[dict[str, Any]], out: Path) -> None:
    shown = [run for run in runs if "problem" not in run]
    print(_without_root(shown[0]["page"]))
    for number in range(1, len(shown)):
        _tidegauge("diff", str(out / f"{number - 1}.pickle"), str(out / f"{number}.pickle"), "--top", "4")
    _tidegauge(str(out / f"{len(shown) - 1}.pickle"), "--top", "4")
    first = shown[0]
    print(f"\n{first['parameters']:,} parameters; {first['device']}, torch {first['torch']}")
    print(f"{'measure':26} {'peak, MiB':>10} {'predicted':>10} {'saved':>10} {'of advice':>10} {'step x':>7}")
    for before, run in zip([None, *shown], shown, strict=False):
        saved = "" if before is None else f"{(before['peak_bytes'] - run['peak_bytes']) / 2**20:,.1f}"
        expected = "" if before is None else f"{before['next']['saved_bytes'] / 2**20:,.1f}"
        bound = "" if before is None else "at most" if before["next"]["is_bound"] else "expected"
        print(
            f"{run['applied'] or 'as it was':26} {run['peak_bytes'] / 2**20:10,.1f} {expected:>10} {saved:>10}"
            f" {bound:>10} {run['step_ms'] / first['step_ms']:7.2f}"
        )


def _tidegauge(*arguments: str) -> None:
    command = [sys.executable, "-m", "tidegauge.cli.main", "profile", *arguments]
    said = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    print(f"\n$ tidegauge profile {' '.join(Path(one).name for one in arguments)}", _without_root(said), sep="\n")


def _without_root(text: str) -> str:
    return text.replace(f"{ROOT}/", "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="folder for snapshots and profile_walk.json")
    parser.add_argument("--on", choices=("gpu", "rig"), default="gpu")
    parser.add_argument("--measures", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measures is not None:
        print(json.dumps(one_run(args.measures, args.snapshot)), flush=True)
        return 0
    if args.out is None:
        parser.error("OUT is needed")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="profile-walk-") as scratch:
        python, environ = place(args.on, Path(scratch))
        runs = walked([python, str(Path(__file__).resolve())], environ, args.out)
    (args.out / "profile_walk.json").write_text(json.dumps(runs, indent=1), encoding="utf-8")
    wrong = [run["problem"] for run in runs if "problem" in run]
    if len(wrong) < len(runs):
        show(runs, args.out)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
