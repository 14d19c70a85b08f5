"""Records step series of many small training loops on a real GPU, to try the leak detector with. Needs torch and NVML.

    python bench/gpu_recordings.py OUT.tar.gz                        # all loops, seeds 1 to 3
    python bench/gpu_recordings.py OUT.tar.gz --seeds 1 --only steady leak_hook

    python bench/gpu_recordings.py OUT.tar.gz --wild --workers 18    # loops that run into a cap, and some that do not
    python bench/gpu_recordings.py OUT.tar.gz --wild wild_loops_by_another --workers 18

The loops are those of tests/leakseries/rig_loops.py and gpu_loops.py, or of wild_loops.py or the module that `--wild`
names, each in a process of its own, a few at a time. In the archive: NAME_SEED.csv.gz (the columns of
`rig_loops.COLUMNS`, NVML refreshed at 10 Hz) and truth.json (for each: leak, signal, onset_step, note, model; of the
wild ones cap_bytes, and oom_step and oom_t of those that ran out of memory). Loops that did not start within
`--budget-s` are left out and named.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leakseries import gpu_loops, rig_loops, wild_loops  # noqa: E402

NVML_PERIOD_S = 0.1
LOOP_LIMIT_S = 75.0
"""A loop that takes longer is ended and left out."""
START_LIMIT_S = 20.0
STEPS = (300, 400, 500)
WILD_LIMIT_S = 400.0
WILD_STEPS = 900
WILD_CAP_BYTES = 1740 << 20
LOOPS = (*gpu_loops.NEED_KERNELS, *gpu_loops.NEW_LOOPS, *rig_loops.LOOPS)
"""Slowest first."""
ONCE = frozenset({"recompilation"})
"""Recorded with one seed: compiling takes long."""
TRANSFORMER_ONLY = frozenset({"recompilation", "rotary_cache", "leak_slowly_kept_outputs"})


class Order(NamedTuple):
    """One recording to make."""

    loop: Callable[[Any], Iterator[object]]
    seed: int
    wild: bool = False
    slower_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.loop.__name__}_{self.seed}"

    @property
    def model(self) -> str:
        conv = self.seed % 3 == 2 and self.loop.__name__ not in TRANSFORMER_ONLY
        return "cnn" if conv else "transformer"


class NvmlBytes:
    """NVML's bytes of this process on device 0, refreshed at 10 Hz by a thread; -1 while they cannot be read."""

    def __init__(self) -> None:
        self._bytes = -1
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._device = pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception as error:
            print(f"NVML: {error}", flush=True)
            return
        self._read()
        threading.Thread(target=self._watch, daemon=True).start()

    def __call__(self) -> int:
        return self._bytes

    def _watch(self) -> None:
        while True:
            self._read()
            time.sleep(NVML_PERIOD_S)

    def _read(self) -> None:
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device):
            if process.pid == os.getpid() and process.usedGpuMemory is not None:
                self._bytes = process.usedGpuMemory


def make(order: Order, folder: Path, rig: bool) -> None:
    """Record one series; runs in a process of its own. Nothing is written when it fails."""
    try:
        name = order.loop.__name__
        leak = name.startswith("leak_")
        truth: dict[str, object] = {"leak": leak, "model": order.model}
        if order.wild:
            capped = wild_loops.CappedBench(name, order.seed, WILD_STEPS, WILD_CAP_BYTES, order.slower_s)
            bench: rig_loops.Bench = capped
            truth["cap_bytes"] = capped.cap_bytes
        else:
            kinds = {"cnn": gpu_loops.ConvBench, "transformer": gpu_loops.GpuBench}
            bench = (rig_loops.Bench if rig else kinds[order.model])(name, order.seed, STEPS[order.seed % 3])
        rows: list[rig_loops.Row] = []
        begin = time.monotonic()
        try:
            for row in rig_loops.record(order.loop, bench, NvmlBytes()):
                rows.append(row)
                if len(rows) == 1:
                    begin = time.monotonic() - row[1]
        except torch.OutOfMemoryError:
            if not order.wild:
                raise
            truth |= {"oom_step": len(rows), "oom_t": round(time.monotonic() - begin, 4)}
        if leak:
            reserved = order.wild and name in sys.modules[order.loop.__module__].RESERVED
            signal = gpu_loops.signal_of(name) if not order.wild else "reserved" if reserved else "allocated"
            truth |= {"signal": signal, "onset_step": bench.onset}
        if name == "leak_losses":
            truth["note"] = True
        (folder / f"{order.name}.json").write_text(json.dumps(truth))
        rig_loops.write(folder / f"{order.name}.csv.gz", rows)
    except BaseException:
        traceback.print_exc(limit=4)
        os._exit(1)
    os._exit(0)  # no tear-down of contexts, compilers and threads


def orders(seeds: Sequence[int], only: Sequence[str], rig: bool, wild: str | None) -> list[Order]:
    """All of the first seed before the next, so that a spent budget costs repetitions and no loop."""
    module = importlib.import_module(f"leakseries.{wild}") if wild else None
    every = (*module.LEAKS, *module.HEALTHY) if module else LOOPS
    need_kernels = module.NEED_KERNELS if module else gpu_loops.NEED_KERNELS
    loops = [loop for loop in every if not only or loop.__name__ in only]
    return [
        Order(loop, seed, bool(wild))
        for seed in seeds
        for loop in loops
        if not (rig and loop in need_kernels) and (seed == seeds[0] or loop.__name__ not in ONCE)
    ]


class Workers:
    """Runs orders, each in a forked process, a few at a time."""

    def __init__(self, folder: Path, rig: bool) -> None:
        self._folder = folder
        self._rig = rig
        self._running: list[tuple[Order, BaseProcess, float]] = []
        self.failed: list[str] = []

    def start(self, order: Order) -> None:
        # Forked, so that torch is imported once; the parent never touches CUDA.
        process = multiprocessing.get_context("fork").Process(target=make, args=(order, self._folder, self._rig))
        process.start()
        self._running.append((order, process, time.monotonic()))

    def wait_for_fewer_than(self, count: int) -> None:
        while len(self._running) >= count:
            time.sleep(0.05)
            for entry in list(self._running):
                order, process, since = entry
                limit_s = WILD_LIMIT_S if order.wild else LOOP_LIMIT_S
                if process.is_alive() and time.monotonic() - since > limit_s:
                    process.kill()
                    process.join()
                if not process.is_alive():
                    self._running.remove(entry)
                    if process.exitcode != 0:
                        self.failed.append(order.name)
                        print(f"failed: {order.name} ({process.exitcode})", flush=True)


def record_all(wanted: Sequence[Order], folder: Path, *, workers: int, budget_s: float, rig: bool) -> None:
    begin = time.monotonic()
    crew = Workers(folder, rig)
    left_out = []
    for order in wanted:
        crew.wait_for_fewer_than(workers)
        if time.monotonic() - begin > budget_s:
            left_out.append(order.name)
        else:
            crew.start(order)
    crew.wait_for_fewer_than(1)
    took = time.monotonic() - begin
    print(f"{len(wanted)} wanted, {len(crew.failed)} failed, {len(left_out)} left out in {took:.0f} s: {left_out}")


def pack(folder: Path, target: Path) -> None:
    """The recordings and one truth.json."""
    truths = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    (folder / "truth.json").write_text(json.dumps(truths, indent=1, sort_keys=True))
    with tarfile.open(target, "w:gz") as archive:
        for path in [folder / "truth.json", *sorted(folder.glob("*.csv.gz"))]:
            archive.add(path, arcname=path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record step series on a GPU.")
    parser.add_argument("target", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", nargs="+", default=[], metavar="LOOP")
    parser.add_argument("--workers", type=int, default=5, help="loops at a time: they share the GPU")
    parser.add_argument("--budget-s", type=float, default=330.0, help="no loop is started after this many seconds")
    below = "loops of this module of tests/leakseries (wild_loops), below a cap of 1,740 MiB"
    parser.add_argument("--wild", nargs="?", const="wild_loops", metavar="MODULE", help=below)
    parser.add_argument("--slower-s", type=float, default=0.0, help="seconds that each step of these takes longer")
    parser.add_argument("--rig", action="store_true", help="on the fake-GPU rig: small models, no real kernels")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wanted = orders(args.seeds, args.only, args.rig, args.wild)
        wanted = [order._replace(slower_s=args.slower_s) for order in wanted]
        record_all(wanted, Path(folder), workers=args.workers, budget_s=args.budget_s, rig=args.rig)
        pack(Path(folder), args.target)


if __name__ == "__main__":
    main()
