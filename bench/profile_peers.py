"""Memory profilers on one training job: the peak each tells against PyTorch's own, and what a step takes with it.

    python bench/profile_peers.py OUT --on gpu --packages SITE_PACKAGES
    .venv/bin/python bench/profile_peers.py OUT --on rig --packages SITE_PACKAGES

The job is the transformer of bench/profile_advice.py with AdamW. SITE_PACKAGES has memray, stormlog and Mosaic (with
altair, click, omegaconf and tabulate); their torch is not used. A tool that is not there is left out, with a line that
says so. Each tool runs in a process of its own: it sees the job from its first allocation, if it can, and its steps are
compared with steps of the same process without it (the quickest of thirty each, as others may use the machine). Exits
with 1 if a tool fails.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from profile_advice import Case, Job
from profile_sums import link_packages, place, storage_bytes, timed

WARM_UP_STEPS, TIMED_STEPS = 3, 30
TIMEOUT_S = 300.0


class Told(NamedTuple):
    """What a tool says of the job, as far as it says it."""

    peak_bytes: int | None
    by_category: Mapping[str, int]
    note: str = ""


class Run:
    """The job, and the steps that were timed with the tool and without it."""

    def __init__(self, scratch: Path) -> None:
        import torch

        self.torch, self.scratch = torch, scratch
        self._job: Job | None = None
        self.before_step: Callable[[], object] = lambda: None

    @property
    def job(self) -> Job:
        if self._job is None:
            self._job = Job(self.torch, Case("", "transformer"))
        return self._job

    def steps(self, count: int) -> list[float]:
        def step() -> None:
            self.before_step()
            self.job.step()

        return [timed(self.torch, step) for _ in range(count)]

    @contextmanager
    def history(self) -> Iterator[None]:
        """PyTorch's allocation history, as its documentation turns it on."""
        memory = self.torch.cuda.memory
        memory._record_memory_history(max_entries=200_000)
        yield
        memory._dump_snapshot(str(self.snapshot))
        memory._record_memory_history(enabled=None)

    @property
    def snapshot(self) -> Path:
        return self.scratch / "snapshot.pickle"

    @property
    def optimizer(self) -> Any:
        return self.job.optimizer


Finish = Callable[[], Told]
Start = Callable[[Run], tuple[AbstractContextManager[Any], Finish]]


# ------------------------------------------------------------------------------------------------ the tools


def tidegauge_block(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    import tidegauge

    run.steps(WARM_UP_STEPS)
    run.torch.cuda.reset_peak_memory_stats()
    block = tidegauge.profile(run.job.model, run.optimizer)

    def finish() -> Told:
        held = {category.value: size for category, size in block.peak.by_category.items()}
        return Told(block.peak.allocated_bytes, held)

    return block, finish


def tidegauge_on_snapshot(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    def finish() -> Told:
        command = [sys.executable, "-m", "tidegauge.cli.main", "profile", str(run.snapshot), "--json"]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        return Told(found["peak"]["allocated_bytes"], found["peak"]["by_category"])

    return run.history(), finish


def mem_tracker(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    module = importlib.import_module("torch.distributed._tools.mem_tracker")
    run.steps(WARM_UP_STEPS)
    run.torch.cuda.reset_peak_memory_stats()
    tracker = module.MemTracker()
    tracker.track_external(run.job.model, run.optimizer)
    run.before_step = tracker.reset_mod_stats  # it takes one step alone, unless told of each

    def finish() -> Told:
        run.before_step = lambda: None
        (snapshot,) = (one for device, one in tracker.get_tracker_snapshot("peak").items() if device.type == "cuda")
        held = {getattr(name, "value", name): size for name, size in snapshot.items()}
        return Told(held.pop("Total"), held)

    return tracker, finish


def memory_viz(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    viz = importlib.import_module("torch.cuda._memory_viz")

    def finish() -> Told:
        page = viz.trace_plot(pickle.loads(run.snapshot.read_bytes()))
        return Told(None, {}, f"trace_plot: a page of {len(page):,} characters, which loads its script from the web")

    return run.history(), finish


def memory_viz_profile(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    viz = importlib.import_module("torch.cuda._memory_viz")
    run.steps(WARM_UP_STEPS)
    run.torch.cuda.reset_peak_memory_stats()
    profiler = run.torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True)

    def finish() -> Told:
        page = viz.profile_plot(profiler, device=None)
        return Told(None, {}, f"profile_plot: a page of {len(page):,} characters")

    return profiler, finish


def _mosaic(run: Run) -> Told:
    entry = importlib.import_module("mosaic.cmd.entry_point")
    peak = entry.get_memory_usage_peak(
        snapshot=str(run.snapshot), trace="", allocation="", action="", paste=False, print_stack=False,
        upload_result=False,
    ).memory_snapshot  # fmt: skip
    out = str(run.scratch / "mosaic.html")
    profile = entry.get_memory_profile(snapshot=str(run.snapshot), out_path=out, profile="categories").memory_snapshot
    highest = max(profile.memory_usage_history.values(), key=lambda usage: usage.total_alloc)
    held = {name.name.lower(): int(size) for name, size in highest.per_category_alloc_sum.items()}
    return Told(int(peak.dynamic_memory_peak + peak.static_memory), held)


def mosaic(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    return run.history(), lambda: _mosaic(run)


def mosaic_begun_late(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    run.steps(WARM_UP_STEPS)
    run.torch.cuda.reset_peak_memory_stats()
    return mosaic(run)


def memray(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    module = importlib.import_module("memray")
    run.steps(WARM_UP_STEPS)
    out = run.scratch / "memray.bin"

    def finish() -> Told:
        reader = module.FileReader(str(out))
        return Told(None, {}, f"peak of the host's heap: {reader.metadata.peak_memory / 2**20:,.1f} MiB")

    return module.Tracker(str(out)), finish


def stormlog(run: Run) -> tuple[AbstractContextManager[Any], Finish]:
    module = importlib.import_module("stormlog")
    run.steps(WARM_UP_STEPS)
    profiler = module.GPUMemoryProfiler()

    def finish() -> Told:
        return Told(profiler.results[-1].memory_peak.max_memory_allocated, {})

    return profiler.profile_context("steps"), finish


TOOLS: Mapping[str, Start] = {
    "Tidegauge, with profile()": tidegauge_block,
    "Tidegauge, of a snapshot": tidegauge_on_snapshot,
    "MemTracker": mem_tracker,
    "memory_viz, trace_plot": memory_viz,
    "memory_viz, profile_plot": memory_viz_profile,
    "Mosaic": mosaic,
    "Mosaic, begun at step 4": mosaic_begun_late,
    "memray": memray,
    "stormlog": stormlog,
}
NEEDS = {"Mosaic": "mosaic", "Mosaic, begun at step 4": "mosaic", "memray": "memray", "stormlog": "stormlog"}


# ------------------------------------------------------------------------------------------------ one tool


def tried(name: str, scratch: Path) -> dict[str, Any]:
    run = Run(scratch)
    tool, finish = TOOLS[name](run)
    with tool:
        run.steps(WARM_UP_STEPS)
        with_s = run.steps(TIMED_STEPS)
        peak = run.torch.cuda.max_memory_allocated()
        parameters = storage_bytes(run.job.model.parameters())
        states = storage_bytes([one for values in run.optimizer.state.values() for one in values.values()])
        leaving_s = time.perf_counter()
    leaving_s = time.perf_counter() - leaving_s
    began_s = time.perf_counter()
    told = finish()
    finished_s = time.perf_counter() - began_s
    plain_s = run.steps(TIMED_STEPS)
    return {
        "pytorchs_peak_bytes": peak,
        "parameter_bytes": parameters,
        "state_bytes": states,
        **told._asdict(),
        "with_ms": min(with_s) * 1e3,
        "plain_ms": min(plain_s) * 1e3,
        "afterwards_s": leaving_s + finished_s,
        "torch": run.torch.__version__,
    }


def row(name: str, found: Mapping[str, Any]) -> str:
    if "problem" in found:
        return f"{name:26} FAILED: {found['problem']}"
    peak = found["peak_bytes"]
    against = "no figure" if peak is None else f"{peak / 2**20:,.1f} ({peak - found['pytorchs_peak_bytes']:+,} B)"
    held = sorted(found["by_category"].items(), key=lambda one: -one[1])
    told = ", ".join(f"{category} {size / 2**20:,.1f}" for category, size in held if size)
    return (
        f"{name:26} {found['pytorchs_peak_bytes'] / 2**20:9,.1f} {against:>28}"
        f" {found['with_ms'] / found['plain_ms']:6.2f} {found['afterwards_s']:7.2f}  {found['note'] or told}"
    )


def run_tool(name: str, command: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [*command, "--tool", name],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"took more than {TIMEOUT_S:.0f} s"}
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"pytorchs')]
    return json.loads(answers[-1]) if answers else {"problem": (done.stderr.strip() or "no answer")[-600:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="folder for profile_peers.json")
    parser.add_argument("--on", choices=("gpu", "rig"), default="gpu")
    parser.add_argument("--packages", type=Path, help="site-packages with the peers")
    parser.add_argument("--only", default="", metavar="WORD", help="tools whose names contain it")
    parser.add_argument("--tool", choices=TOOLS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.tool is not None:
        with tempfile.TemporaryDirectory(prefix="profile-peers-") as scratch:
            print(json.dumps(tried(args.tool, Path(scratch))), flush=True)
        return 0
    if args.out is None:
        parser.error("OUT is needed")
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="profile-peers-") as scratch:
        python, environ = place(args.on, Path(scratch))
        if args.packages is not None:
            seen = link_packages(args.packages.resolve(), Path(scratch, "peers"))
            environ = {**environ, "PYTHONPATH": f"{environ['PYTHONPATH']}:{seen}"}
        print(f"{'tool':26} {'PyTorch':>9} {'told, MiB':>28} {'step x':>6} {'after s':>7}")
        for name in (name for name in TOOLS if args.only in name):
            question = f"import importlib.util as u; raise SystemExit(u.find_spec({NEEDS.get(name, 'json')!r}) is None)"
            if subprocess.run([python, "-c", question], env=dict(environ), check=False).returncode:
                print(f"not run, it needs {NEEDS[name]}: {name}", file=sys.stderr)
                continue
            results[name] = run_tool(name, [python, str(Path(__file__).resolve())], environ)
            print(row(name, results[name]), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "profile_peers.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    return int(any("problem" in found for found in results.values()))


if __name__ == "__main__":
    sys.exit(main())
