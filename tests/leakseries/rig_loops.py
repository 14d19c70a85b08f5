"""Training loops that need no kernel's result: they run on the fake-GPU rig (PyTorch's real allocator) and on GPUs.

    python tests/fakegpu/rig.py run -- .rig/venv/bin/python tests/leakseries/rig_loops.py FOLDER SEED [LOOP ...]

Writes one step series per loop. tests/data/series_rig was made so, after the detector had been tuned, and is only
judged by it. NVML is not read there (-1); `bench/gpu_recordings.py` runs these loops, and more, on a real GPU.
"""

from __future__ import annotations

import copy
import csv
import gc
import gzip
import io
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

DEVICE = "cuda"
COLUMNS = ("step", "t", "allocated", "reserved", "peak_allocated", "nvml_process", "inactive_split", "alloc_retries")
Row = tuple[float, ...]
"""The values of `COLUMNS`."""


class Bench:
    """A small transformer, its optimizer, and what a loop keeps. Sizes and times are drawn from the seed."""

    widths: tuple[int, ...] = (128, 256)
    depths: tuple[int, ...] = (2, 4, 6)
    batches: tuple[int, ...] = (4, 8, 16)
    lengths: tuple[int, ...] = (64, 128)

    def __init__(self, name: str, seed: int, steps: int) -> None:
        self.draw = random.Random(f"{name}/{seed}")
        self.steps = steps
        self.net: Any = self.build()
        self.net.to(DEVICE)
        self.optimizer: Any = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.kept: list[Any] = []
        self.onset = 0
        """Step at which a leaking loop begins to leak; such a loop sets it when it is not the first."""
        self.batch, self.length = self.draw.choice(self.batches), self.draw.choice(self.lengths)
        self.item = self.draw.choice((4096, 16384, 65536, 262144))
        self.epoch = self.draw.choice((20, 30, 40))
        self.until = int(steps * self.draw.uniform(0.35, 0.65))
        """When what grows stops growing, or when a late leak begins."""

    def build(self) -> Any:
        width, depth = self.draw.choice(self.widths), self.draw.choice(self.depths)
        layers = [torch.nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True) for _ in range(depth)]
        return torch.nn.Sequential(torch.nn.Embedding(2000, width), *layers, torch.nn.Linear(width, 2000))

    def inputs(self, batch: int, length: int) -> Any:
        return torch.randint(0, 2000, (batch, length), device=DEVICE)

    def train(self, batch: int | None = None, length: int | None = None) -> Any:
        """One optimizer step; returns the outputs."""
        outputs = self.net(self.inputs(batch or self.batch, length or self.length))
        outputs.float().square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return outputs

    def keep(self, size: int) -> None:
        self.kept.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))

    def ramp(self) -> Iterator[tuple[int, float]]:
        """Steps, and how far the growth has come (0 to 1)."""
        for step in range(self.steps):
            yield step, min(step / self.until, 1.0)


Loop = Callable[[Bench], Iterator[object]]


def steady(bench: Bench) -> Iterator[object]:
    for _ in range(bench.steps):
        yield bench.train() is None


def variable_length(bench: Bench) -> Iterator[object]:
    for _ in range(bench.steps):
        yield bench.train(length=bench.draw.randint(16, 2 * bench.length)) is None


def random_walk_length(bench: Bench) -> Iterator[object]:
    length = float(bench.length)
    for _ in range(bench.steps):
        length = min(max(length + bench.draw.gauss(0, 6), 16), 2.5 * bench.length)
        yield bench.train(length=int(length))


def batch_ramp(bench: Bench) -> Iterator[object]:
    for _, done in bench.ramp():
        yield bench.train(batch=max(1, int(bench.batch * (0.25 + 1.75 * done)))) is None


def length_ramp(bench: Bench) -> Iterator[object]:
    for _, done in bench.ramp():
        yield bench.train(length=int(16 + 2 * bench.length * done)) is None


def curriculum(bench: Bench) -> Iterator[object]:
    stages = bench.draw.randint(4, 12)
    for _, done in bench.ramp():
        yield bench.train(length=32 + int(1.5 * bench.length) * int(done * stages) // stages) is None


def ema_start(bench: Bench) -> Iterator[object]:
    for step, _ in bench.ramp():
        if step == bench.until:
            bench.kept.append(copy.deepcopy(bench.net))
        yield bench.train() is None


def best_model_copies(bench: Bench) -> Iterator[object]:
    saved = {int(bench.steps * share) for share in (0.13, 0.27, 0.45, 0.58)}
    for step, _ in bench.ramp():
        if step in saved:
            bench.kept.append(copy.deepcopy(bench.net.state_dict()))
        yield bench.train() is None


def unfreezing(bench: Bench) -> Iterator[object]:
    parts = list(bench.net)[::-1]
    for part in parts[1:]:
        part.requires_grad_(False)
    for _, done in bench.ramp():
        for part in parts[: 1 + int(done * (len(parts) - 1))]:
            part.requires_grad_(True)
        yield bench.train() is None


def replay_buffer(bench: Bench) -> Iterator[object]:
    for step, _ in bench.ramp():
        if step < bench.until:
            bench.keep(bench.item)
        yield bench.train() is None


def noisy_queue(bench: Bench) -> Iterator[object]:
    for _ in range(bench.steps):
        bench.keep(bench.draw.randint(1000, 500_000))
        del bench.kept[: -bench.draw.randint(20, 40)]
        yield bench.train() is None


def gc_sawtooth(bench: Bench) -> Iterator[object]:
    return sawtooth(bench, bench.draw.randint(30, 200))


def sawtooth(bench: Bench, tooth: int) -> Iterator[object]:
    """A reference cycle a step, collected every `tooth` steps."""
    gc.disable()
    for step in range(bench.steps):
        cycle: list[Any] = [torch.empty(bench.item, dtype=torch.uint8, device=DEVICE)]
        cycle.append(cycle)
        if step % tooth == tooth - 1:
            gc.collect()
        yield bench.train() is None
    gc.enable()


def epoch_metrics(bench: Bench) -> Iterator[object]:
    for step in range(bench.steps):
        bench.kept.append(bench.train().detach()[:, :1].clone())
        if step % bench.epoch == bench.epoch - 1:
            bench.kept.clear()
        yield None


def evaluation(bench: Bench) -> Iterator[object]:
    for step in range(bench.steps):
        yield bench.train() is None
        if step % bench.epoch == bench.epoch - 1:
            with torch.no_grad():
                bench.kept = [bench.net(bench.inputs(2 * bench.batch, bench.length))]
        elif step % bench.epoch == 2:
            bench.kept = []


def empty_cache(bench: Bench) -> Iterator[object]:
    for step in range(bench.steps):
        yield bench.train() is None
        if step % bench.epoch == 0:
            torch.cuda.empty_cache()


def leak_linear(bench: Bench) -> Iterator[object]:
    for _ in range(bench.steps):
        bench.keep(bench.item)
        yield bench.train() is None


def leak_every_few(bench: Bench) -> Iterator[object]:
    every = bench.draw.randint(2, 10)
    for step in range(bench.steps):
        if step % every == 0:
            bench.keep(bench.item * every)
        yield bench.train() is None


def leak_losses(bench: Bench) -> Iterator[object]:
    for _ in range(bench.steps):
        bench.kept.append(bench.train().float().mean().detach())
        yield None


def leak_graph(bench: Bench) -> Iterator[object]:
    for _ in range(bench.steps):
        yield bench.train() is None
        bench.kept.append(bench.net(bench.inputs(1, 16)).mean())


def leak_stairs(bench: Bench) -> Iterator[object]:
    bench.onset = bench.epoch - 1
    for step in range(bench.steps):
        yield bench.train() is None
        if step % bench.epoch == bench.epoch - 1:
            bench.keep(8 * bench.item)


def leak_late(bench: Bench) -> Iterator[object]:
    bench.onset = bench.until
    for step, _ in bench.ramp():
        if step >= bench.until:
            bench.keep(bench.item)
        yield bench.train() is None


def leak_under_random_walk(bench: Bench) -> Iterator[object]:
    for outputs in random_walk_length(bench):
        bench.keep(bench.item)
        yield outputs


def leak_under_noise(bench: Bench) -> Iterator[object]:
    """Blocks of up to 100 times the leak are alive at the boundary."""
    for _ in range(bench.steps):
        bench.keep(bench.item // 2)
        noise = torch.empty(bench.draw.randint(1, 100) * bench.item // 2, dtype=torch.uint8, device=DEVICE)
        yield bench.train() is noise


def leak_views(bench: Bench) -> Iterator[object]:
    """A view of every few outputs pins the whole of them."""
    every = bench.draw.randint(1, 6)
    for step in range(bench.steps):
        outputs = bench.train()
        if step % every == 0:
            bench.kept.append(outputs.detach()[0, 0])
        yield None


LOOPS: tuple[Loop, ...] = (
    steady, variable_length, random_walk_length, batch_ramp, length_ramp, curriculum, ema_start, best_model_copies,
    unfreezing, replay_buffer, noisy_queue, gc_sawtooth, epoch_metrics, evaluation, empty_cache, leak_linear,
    leak_every_few, leak_losses, leak_graph, leak_stairs, leak_late, leak_under_random_walk, leak_under_noise,
    leak_views,
)  # fmt: skip


def no_nvml() -> int:
    """Where NVML is not read."""
    return -1


def record(loop: Loop, bench: Bench, nvml_bytes: Callable[[], int] = no_nvml) -> Iterator[Row]:
    """One row after every step. `nvml_bytes`: NVML's bytes of this process, -1 when they cannot be read."""
    begin = time.monotonic()
    for step, _ in enumerate(loop(bench)):
        stats = torch.cuda.memory_stats()
        allocated, reserved = stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"]
        peak = stats["allocated_bytes.all.peak"]
        inactive, retries = stats["inactive_split_bytes.all.current"], stats["num_alloc_retries"]
        yield (step, round(time.monotonic() - begin, 4), allocated, reserved, peak, nvml_bytes(), inactive, retries)


def write(path: Path, rows: Iterable[Row]) -> None:
    """Gzipped CSV with no time stamp inside, so that the same rows make the same file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    wanted = sys.argv[3:]
    for loop in LOOPS:
        name = loop.__name__
        if wanted and name not in wanted:
            continue
        rows = list(record(loop, Bench(name, seed, (300, 400, 500)[seed % 3])))
        write(folder / f"{name}_{seed}.csv.gz", rows)
        print(name, len(rows), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
