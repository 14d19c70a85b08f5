"""Records peaks, allocator traces and allocations by operator of real training steps: the truth for estimates.

    python bench/gpu_peaks.py OUT --recorded peaks.jsonl        # everything, six to eight minutes on an H200
    python bench/gpu_peaks.py OUT --stages more --only vit tv:resnet18

Needs a GPU, torch >= 2.10, transformers, torchvision, numpy and nvidia-ml-py. Every job of gpu_peaks_models.py runs in
a process of its own, several at a time: the caching allocator of one does not see the others while memory suffices
(`alloc_retries` says whether it did). Stages, each within its share of time:

- recorded: the jobs of an earlier recording (--recorded) again, `error_percent` saying how far off;
- more: jobs of other families; heldout: jobs that no table may be made from (bench/gpu_peaks_heldout.py). They leave a
  line each in peaks_recorded.jsonl, peaks_more.jsonl and peaks_heldout.jsonl with the keys of
  ../shared/recordings/peaks.jsonl and the configuration, and a complete trace KEY.npz: the arrays of
  ../shared/recordings/traces, `steps` with the columns of STEP_COLUMNS;
- context: context_NAME.json, bytes of the process outside the allocator after first uses (bench/gpu_context.py);
- operators: two steps of every job, operators/KEY.json: see `gpu_peaks_operators.summary`;
- workspaces: cuDNN's workspaces by convolution (bench/gpu_workspaces.py), workspaces.csv.

Packed into OUT/tables.tar.gz and OUT/traces_N.tar.
"""

from __future__ import annotations

import argparse
import json
import os
import tarfile
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")  # several jobs share the cores
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Without it, asking for a GPU while importing initialises CUDA in the parent, and no child could use it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import gpu_context
import gpu_peaks_models as jobs_of
import gpu_workspaces
import numpy as np
import torch
from gpu_peaks_heldout import heldout_jobs
from gpu_peaks_operators import OperatorTags, begin_trace, summary, trace
from gpu_peaks_training import load_modules, training_of
from gpu_workers import Task, Workers

Job = dict[str, Any]

STEPS = 4
OPERATOR_STEPS = 2
"""The first allocates what is kept (optimizer state, cuBLAS's workspaces), the second shows the rest alone."""
TASK_LIMIT_S = 75.0
GPU_GIB = 125.0
"""Of an H200's 139 GiB, for all jobs at a time."""
ARCHIVE_BYTES = 15 << 20
STAGES = ("recorded", "context", "more", "heldout", "operators", "workspaces")
SHARES = {"recorded": 0.1, "context": 0.03, "more": 0.3, "heldout": 0.1, "operators": 0.26, "workspaces": 0.21}
"""Of the time that is left, against the later stages' shares."""
JOB_SETS = {"recorded": range(1000), "more": range(1000, 2000), "heldout": range(2000, 3000)}
"""Their numbers `i`."""
COMPARED = ("params", "peak_alloc", "peak_reserved", "after", "step1_peak_alloc", "step1_peak_reserved")
STEP_COLUMNS = (
    *("step", "forward_event", "backward_event", "optimizer_event", "end_event"),
    *("allocated", "reserved", "peak_allocated", "peak_reserved", "alloc_retries"),
)
ACTIONS = (
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("snapshot", "oom", "workspace_snapshot"),
)
"""A trace's action codes, in the order of ../shared/recordings/traces."""


def key_of(job: Mapping[str, Any]) -> str:
    """A file name for a job."""
    parts = [f"{job['i']:04d}", job.get("name", job["fam"]), f"b{job['b']}", job["opt"]]
    return "_".join(parts + [flag for flag in ("amp", "ckpt") if job.get(flag)])


def gib_of(job: Mapping[str, Any]) -> float:
    """A generous guess at what a job takes: 64 pictures stay below 16 GiB in all of the models."""
    if job["fam"] == "tv":
        return float(max(4, job["b"] / 4)) * (2 if job["name"] in ("efficientnet_b4", "convnext_base") else 1)
    return 14.0 if job["b"] >= 16 else 10.0


def record_peaks(job: Job, folder: Path, expected: Mapping[str, Any]) -> None:
    """Run a job's steps: a line of peaks and its trace, or a line with the error."""
    key = key_of(job)
    try:
        begin_trace()
        training = training_of(job)
        rows = []
        for step in range(STEPS):
            training.step(partial(_mark, step))
            torch.cuda.memory._set_memory_metadata("")
            stats = torch.cuda.memory_stats()
            values = [
                stats[f"{kind}_bytes.all.{when}"] for when in ("current", "peak") for kind in ("allocated", "reserved")
            ]
            rows.append([*values, stats["num_alloc_retries"]])
        line = {**job, **_peaks(training.parameters, rows), "torch": torch.__version__}
        if expected:
            line["error_percent"] = {name: round(100 * (line[name] / expected[name] - 1), 4) for name in COMPARED}
        events = trace()
        _save_trace(folder / "traces" / f"{key}.npz", job, events, rows)
    except Exception as error:
        traceback.print_exc(limit=-3)
        line = {**job, "error": f"{type(error).__name__}: {error}"[:500]}
    (folder / "peaks" / f"{key}.json").write_text(json.dumps(line))


def _mark(step: int, phase: str) -> None:
    torch.cuda.memory._set_memory_metadata(f"{step} {phase}")


def _peaks(parameters: int, rows: Sequence[Sequence[int]]) -> Job:
    allocated, _, peak_allocated, peak_reserved, retries = rows[-1]
    return {
        "params": parameters,
        "peak_alloc": peak_allocated,
        "peak_reserved": peak_reserved,
        "after": allocated,
        "nvml": gpu_context.process_bytes(),
        "step1_peak_alloc": rows[0][2],
        "step1_peak_reserved": rows[0][3],
        "alloc_retries": retries,
    }


def _save_trace(path: Path, job: Job, events: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[int]]) -> None:
    codes = {action: code for code, action in enumerate(ACTIONS)}
    begins: dict[str, int] = {}
    for index, event in enumerate(events):
        begins.setdefault(event.get("user_metadata", ""), index)
    steps = []
    end = len(events)
    for step in reversed(range(len(rows))):  # backwards: a phase without events begins where the next one does
        optimizer = begins.get(f"{step} optimizer", end)
        backward = begins.get(f"{step} backward", optimizer)
        forward = begins.get(f"{step} forward", backward)
        steps.append([step, forward, backward, optimizer, end, *rows[step]])
        end = forward
    conf = os.environ.get("PYTORCH_ALLOC_CONF", "")
    meta = {"workload": key_of(job), "job": job, "conf": conf, "torch": torch.__version__, "error": None}
    meta |= {"actions": codes, "total": torch.cuda.get_device_properties(0).total_memory, "step_cols": STEP_COLUMNS}
    np.savez_compressed(
        path,
        action=np.array([codes[event["action"]] for event in events], np.uint8),
        addr=np.array([event["addr"] for event in events], np.uint64),
        size=np.array([event["size"] for event in events], np.uint64),
        stream=np.array([event["stream"] for event in events], np.uint64),
        time_us=np.array([event["time_us"] for event in events], np.int64),
        steps=np.array(steps[::-1], np.int64),
        meta=np.array(json.dumps(meta)),
    )


def record_operators(job: Job, folder: Path) -> None:
    """Run a job's first steps under `OperatorTags`."""
    begin_trace()
    training = training_of(job)
    tags = OperatorTags()
    for step in range(OPERATOR_STEPS):
        tags.step = step
        with tags:
            training.step(tags.mark)
    entries = summary(tags.calls, trace(), OPERATOR_STEPS)
    (folder / "operators" / f"{key_of(job)}.json").write_text(json.dumps({"job": job, "operators": entries}))


def pack(folder: Path, target: Path) -> None:
    """Everything found so far: the tables in one archive, the traces in several, each below ARCHIVE_BYTES."""
    for name, numbers in JOB_SETS.items():
        chosen = [path for path in sorted((folder / "peaks").iterdir()) if int(path.name[:4]) in numbers]
        (folder / f"peaks_{name}.jsonl").write_text("".join(path.read_text() + "\n" for path in chosen))
    with (folder / "workspaces.csv").open("w") as table:
        table.write(",".join(gpu_workspaces.Row._fields) + "\n")
        for path in sorted((folder / "workspaces").iterdir()):
            table.write(path.read_text())
    with tarfile.open(target / "tables.tar.gz", "w:gz") as archive:
        for path in [*sorted(folder.glob("*.*")), *sorted((folder / "operators").iterdir())]:
            archive.add(path, arcname=str(path.relative_to(folder)))
    for number, paths in enumerate(_shelves(sorted((folder / "traces").iterdir()))):
        with tarfile.open(target / f"traces_{number}.tar", "w") as archive:
            for path in paths:
                archive.add(path, arcname=path.name)


def _shelves(paths: Iterable[Path]) -> list[list[Path]]:
    shelves: list[list[Path]] = [[]]
    filled = 0
    for path in paths:
        size = path.stat().st_size + 1024
        if filled + size > ARCHIVE_BYTES:
            shelves.append([])
            filled = 0
        shelves[-1].append(path)
        filled += size
    return shelves


def stage_tasks(stage: str, folder: Path, jobs: Sequence[Job], lines: Mapping[int, Any], budget_s: float) -> list[Task]:
    """What a stage runs, most wanted first."""
    if stage in JOB_SETS:
        return [
            Task(key_of(job), record_peaks, (job, folder, lines.get(job["i"], {})), gib_of(job), TASK_LIMIT_S)
            for job in jobs
            if job["i"] in JOB_SETS[stage]
        ]
    if stage == "operators":
        fitted = [job for job in jobs if job["i"] not in JOB_SETS["heldout"]]
        return [Task(key_of(job), record_operators, (job, folder), gib_of(job), TASK_LIMIT_S) for job in fitted]
    if stage == "workspaces":
        return gpu_workspaces.tasks(folder / "workspaces", budget_s)
    return gpu_context.tasks(folder)


def chosen_jobs(lines: Mapping[int, Any], only: Sequence[str]) -> list[Job]:
    """All jobs, or those of the families and torchvision models that are named."""
    jobs = [jobs_of.of_recorded(line) for line in lines.values()] + jobs_of.more_jobs() + heldout_jobs()
    return [job for job in jobs if not only or job.get("name", job["fam"]) in only]


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the memory of training jobs on a GPU.")
    parser.add_argument("target", type=Path, help="folder for the archives")
    parser.add_argument("--recorded", type=Path, help="peaks.jsonl of an earlier recording to reproduce")
    parser.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="families, torchvision models")
    parser.add_argument("--workers", type=int, default=12, help="jobs at a time: they share the GPU")
    parser.add_argument("--budget-s", type=float, default=480.0, help="time for all stages; nothing is begun later")
    args = parser.parse_args()
    begin_s = time.monotonic()
    texts = args.recorded.read_text().splitlines() if args.recorded else []
    lines = {line["i"]: line for line in map(json.loads, texts)}
    jobs = chosen_jobs(lines, args.only)
    for job in jobs:
        load_modules(job)
    print(f"{len(jobs)} jobs; modules loaded in {time.monotonic() - begin_s:.0f} s", flush=True)
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("peaks", "traces", "operators", "workspaces"):
            (folder / part).mkdir()
        workers = Workers(count=args.workers, gib=GPU_GIB)
        for number, stage in enumerate(args.stages):
            began_s = time.monotonic()
            left_s = args.budget_s - (began_s - begin_s)
            share_s = left_s * SHARES[stage] / sum(SHARES[later] for later in args.stages[number:])
            tasks = stage_tasks(stage, folder, jobs, lines, share_s)
            outcome = workers.run(tasks, share_s)
            report[stage] = {"tasks": len(tasks), "took_s": round(time.monotonic() - began_s, 1), **outcome._asdict()}
            print(stage, json.dumps(report[stage]), flush=True)
            (folder / "report.json").write_text(json.dumps(report, indent=1))
            pack(folder, args.target)


if __name__ == "__main__":
    main()
