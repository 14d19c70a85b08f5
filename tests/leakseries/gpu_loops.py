"""More training loops, for real GPUs: sizes of real small jobs, memory outside the allocator, graphs, compilation.

A loop whose name begins with `leak_` leaks: on `nontorch` when it goes on with `outside`, on `reserved` with
`fragments`, else on `allocated`.
"""

from __future__ import annotations

import copy
import ctypes
import gc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from leakseries.rig_loops import DEVICE, Bench, Loop, batch_ramp, random_walk_length, sawtooth, variable_length

KIB = 1024
MIB = 1024 * KIB


class GpuBench(Bench):
    """Sizes at which a step of a transformer takes some 5 to 20 ms on an H200."""

    widths = (256, 384, 512)
    depths = (3, 4, 6)
    batches = (8, 16, 24)
    lengths = (96, 128, 192)


class ConvBench(GpuBench):
    """A small CNN; a length is three times a picture's side."""

    def build(self) -> Any:
        width, depth = self.draw.choice((32, 64)), self.draw.choice((3, 5, 7))
        blocks = [
            torch.nn.Sequential(
                torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.BatchNorm2d(width), torch.nn.ReLU()
            )
            for _ in range(depth)
        ]
        head = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(16 * width, 1000))
        return torch.nn.Sequential(torch.nn.Conv2d(3, width, 3, padding=1), *blocks, head)

    def inputs(self, batch: int, length: int) -> Any:
        side = max(8, length // 3)
        return torch.randn(batch, 3, side, side, device=DEVICE)


class OutsideMemory:
    """`cudaMalloc` behind the allocator's back, as a library would."""

    def __init__(self) -> None:
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if "libcudart" in line)
        self._runtime = ctypes.CDLL(path)

    def take(self, size: int) -> None:
        pointer = ctypes.c_void_p()
        if self._runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) != 0:
            raise MemoryError(f"cudaMalloc of {size} bytes failed")


def hook_last(bench: Bench) -> Iterator[object]:
    """A forward hook that keeps the newest output only."""

    def keep_last(_module: object, _inputs: object, output: Any) -> None:
        bench.kept[:] = [output.detach()]

    bench.net[1].register_forward_hook(keep_last)
    for _ in range(bench.steps):
        yield bench.train() is None


def bounded_deque(bench: Bench) -> Iterator[object]:
    recent: deque[Any] = deque(maxlen=bench.draw.randint(10, bench.steps // 3))
    for _ in range(bench.steps):
        recent.append(torch.empty(bench.item, dtype=torch.uint8, device=DEVICE))
        yield bench.train() is None


def checkpoint_spikes(bench: Bench) -> Iterator[object]:
    for step in range(bench.steps):
        yield bench.train() is None
        if step % bench.epoch == bench.epoch - 1:
            bench.kept = [{name: value.clone() for name, value in bench.net.state_dict().items()}]
        elif step % bench.epoch == 1:
            bench.kept = []


def best_of_three(bench: Bench) -> Iterator[object]:
    """The best three models: improvements are frequent at first."""
    for step in range(bench.steps):
        if bench.draw.random() < 3.0 / (step + 10):
            bench.kept = [*bench.kept[-2:], copy.deepcopy(bench.net.state_dict())]
        yield bench.train() is None


def rotary_cache(bench: Bench) -> Iterator[object]:
    """A table as long as the longest sequence so far."""
    longest = 0
    for _ in range(bench.steps):
        length = bench.draw.randint(16, 2 * bench.length)
        if length > longest:
            longest = length
            bench.kept = [torch.empty(longest, 4096, device=DEVICE)]
        yield bench.train(length=length) is None


def shape_cache(bench: Bench) -> Iterator[object]:
    """A mask for every length: fewer and fewer are new."""
    masks: dict[int, Any] = {}
    for _ in range(bench.steps):
        length = 16 + 4 * bench.draw.randint(0, bench.length // 4)
        if length not in masks:
            masks[length] = torch.empty(length, length, device=DEVICE)
        yield bench.train(length=length) is None


def phase_unfreezing(bench: Bench) -> Iterator[object]:
    """One more part with every phase of the learning rate: three to five phases, the last before 65 % of the run."""
    parts = list(bench.net)[::-1]
    for part in parts[1:]:
        part.requires_grad_(False)
    phases = bench.draw.randint(3, 5)
    for _, done in bench.ramp():
        open_parts = 1 + (len(parts) - 1) * int(done * phases) // phases
        for part in parts[:open_parts]:
            part.requires_grad_(True)
        yield bench.train() is None


def late_optimizer(bench: Bench) -> Iterator[object]:
    """SGD first, Adam later: one rise."""
    adam, bench.optimizer = bench.optimizer, torch.optim.SGD(bench.net.parameters(), lr=1e-3)
    for step in range(bench.steps):
        if step == bench.until:
            bench.optimizer = adam
        yield bench.train() is None


def accumulation(bench: Bench) -> Iterator[object]:
    """Outputs of a few micro-batches live together; a row for each of them."""
    every = bench.draw.randint(4, 12)
    for step in range(bench.steps):
        bench.kept.append(bench.train().detach())
        if step % every == every - 1:
            bench.kept.clear()
        yield None


def long_sawtooth(bench: Bench) -> Iterator[object]:
    return sawtooth(bench, bench.steps // bench.draw.randint(3, 6))


def rollouts(bench: Bench) -> Iterator[object]:
    """A buffer is filled for some steps, used, and emptied (policy gradients); its length varies."""
    left = 0
    for _ in range(bench.steps):
        if left == 0:
            left = bench.draw.randint(15, 60)
            bench.kept.clear()
        bench.keep(bench.item)
        left -= 1
        yield bench.train() is None


def mixed_sizes(bench: Bench) -> Iterator[object]:
    """Blocks of many sizes and lifetimes: the allocator reserves more and more, until its blocks fit."""
    blocks: list[tuple[int, Any]] = []
    for step in range(bench.steps):
        for _ in range(4):
            size = int(MIB * 1.1 ** bench.draw.uniform(0, 40))
            blocks.append((step + bench.draw.randint(1, 25), torch.empty(size, dtype=torch.uint8, device=DEVICE)))
        blocks = [block for block in blocks if block[0] > step]
        yield bench.train() is None


def _wanting_more(bench: Bench, step: int, growth: int) -> None:
    """A passing request that fits none of the cached blocks, and small blocks with bounded lives between them."""
    del bench.kept[:-40]
    passing = torch.empty(12 * MIB + growth * step, dtype=torch.uint8, device=DEVICE)
    bench.keep(bench.draw.randint(1100, 1900) * KIB)
    del passing


def ramp_of_requests(bench: Bench) -> Iterator[object]:
    growth = bench.draw.choice((128, 256, 512)) * KIB
    for step in range(bench.steps):
        _wanting_more(bench, min(step, bench.until), growth)
        yield bench.train() is None


def outside_workspace(bench: Bench) -> Iterator[object]:
    outside = OutsideMemory()
    for step in range(bench.steps):
        if step == bench.until:
            outside.take(500 * MIB)
        yield bench.train() is None


def outside_few(bench: Bench) -> Iterator[object]:
    """Two to five workspaces at any time."""
    outside = OutsideMemory()
    at = {bench.draw.randrange(bench.steps) for _ in range(bench.draw.randint(2, 5))}
    for step in range(bench.steps):
        if step in at:
            outside.take(bench.draw.choice((8, 32, 64, 128)) * MIB)
        yield bench.train() is None


def outside_start(bench: Bench) -> Iterator[object]:
    """Communicators set themselves up during the first steps."""
    outside = OutsideMemory()
    for step in range(bench.steps):
        if step < 30 and step % 3 == 0:
            outside.take(bench.draw.choice((8, 16, 32)) * MIB)
        yield bench.train(length=bench.draw.randint(16, 2 * bench.length)) is None


def side_streams(bench: Bench) -> Iterator[object]:
    """A new stream now and then, each with a cuBLAS workspace of its own (in the allocator) and a few blocks."""
    streams: list[Any] = []
    at = {bench.draw.randrange(bench.steps) for _ in range(bench.draw.randint(2, 4))}
    for step in range(bench.steps):
        if step in at:
            streams.append(torch.cuda.Stream())
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.mm(torch.ones(512, 512, device=DEVICE), torch.ones(512, 512, device=DEVICE))
        yield bench.train() is None


def graphs_late(bench: Bench) -> Iterator[object]:
    """From some step on, a forward pass as a CUDA graph for each of a few shapes, each with a private pool."""
    at = [bench.until + 20 * index for index in range(bench.draw.randint(1, 4))]
    bench.net.eval()
    for step in range(bench.steps):
        yield bench.train() is None
        if step in at:
            still = bench.inputs(bench.batch, bench.length - 16 * at.index(step))
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad():
                bench.net(still)
                with torch.cuda.graph(graph):
                    bench.kept.append(bench.net(still))
            bench.kept += [graph, still]


def recompilation(bench: Bench) -> Iterator[object]:
    """torch.compile with a handful of shapes that come one after the other."""
    shapes = [bench.length - 16 * index for index in range(4)]
    bench.net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3))).to(DEVICE)
    bench.optimizer = torch.optim.AdamW(bench.net.parameters(), lr=1e-3)
    compiled = torch.compile(bench.net, dynamic=False)
    for _, done in bench.ramp():
        length = shapes[min(int(done * len(shapes)), len(shapes) - 1)]
        compiled(torch.randn(bench.batch, length, 512, device=DEVICE)).square().mean().backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad(set_to_none=True)
        yield None


def leak_hook(bench: Bench) -> Iterator[object]:
    """A forward hook stores a slice of what a layer makes."""

    def keep(_module: object, _inputs: object, output: Any) -> None:
        bench.kept.append(output.detach()[:1, :8].clone())

    bench.net[bench.draw.choice((0, 1, 2))].register_forward_hook(keep)
    for _ in range(bench.steps):
        yield bench.train() is None


def leak_predictions(bench: Bench) -> Iterator[object]:
    """Predictions are kept after every epoch, four to nine times in the run."""
    epoch = int(bench.steps / (bench.draw.randint(4, 9) + bench.draw.uniform(0.1, 0.9)))
    bench.onset = epoch - 1
    for step in range(bench.steps):
        yield bench.train() is None
        if step % epoch == epoch - 1:
            with torch.no_grad():
                bench.kept.append(bench.net(bench.inputs(bench.batch, bench.length)).half())


def leak_total_loss(bench: Bench) -> Iterator[object]:
    """The validation loss is summed with its graph."""
    total: Any = 0
    every = bench.draw.choice((1, 2, 5, 10))
    for step in range(bench.steps):
        yield bench.train() is None
        if step % every == 0:
            total = total + bench.net(bench.inputs(2, 32)).square().mean()


def leak_optimizers(bench: Bench) -> Iterator[object]:
    """The optimizer is made again every few steps, and the old one kept."""
    every = bench.draw.randint(10, 30)
    last = bench.net[-1]
    for step in range(bench.steps):
        if step % every == 0:
            bench.kept.append(torch.optim.AdamW(last.parameters(), lr=1e-3))
        yield bench.train() is None
        for values in last.parameters():
            values.grad = torch.zeros_like(values)
        bench.kept[-1].step()
        bench.net.zero_grad(set_to_none=True)


def leak_later(bench: Bench) -> Iterator[object]:
    bench.onset = int(bench.steps * bench.draw.uniform(0.4, 0.7))
    for step in range(bench.steps):
        if step >= bench.onset:
            bench.keep(bench.item)
        yield bench.train() is None


def leak_slowly(bench: Bench) -> Iterator[object]:
    """48 kB a step while lengths vary."""
    for outputs in variable_length(bench):
        bench.keep(48_000)
        yield outputs


def leak_slowly_kept_outputs(bench: Bench) -> Iterator[object]:
    """The same, and the newest output of a varying length is alive at the boundary."""
    for _ in range(bench.steps):
        bench.keep(48_000)
        outputs = bench.train(length=bench.draw.randint(16, 2 * bench.length))
        yield outputs


def leak_with_eval(bench: Bench) -> Iterator[object]:
    held: list[Any] = []
    for outputs in checkpoint_spikes(bench):
        held.append(torch.empty(bench.item, dtype=torch.uint8, device=DEVICE))
        yield outputs


def leak_with_sawtooth(bench: Bench) -> Iterator[object]:
    gc.disable()
    tooth = bench.draw.randint(10, 40)
    for step in range(bench.steps):
        cycle: list[Any] = [torch.empty(bench.item, dtype=torch.uint8, device=DEVICE)]
        cycle.append(cycle)
        bench.keep(bench.item)
        if step % tooth == tooth - 1:
            gc.collect()
        yield bench.train() is None
    gc.enable()


def leak_with_ramp(bench: Bench) -> Iterator[object]:
    for outputs in batch_ramp(bench):
        bench.keep(bench.item)
        yield outputs


def leak_with_walk(bench: Bench) -> Iterator[object]:
    for outputs in random_walk_length(bench):
        bench.keep(bench.item)
        yield outputs


def leak_now_and_then(bench: Bench) -> Iterator[object]:
    chance = bench.draw.uniform(0.15, 0.6)
    for _ in range(bench.steps):
        if bench.draw.random() < chance:
            bench.keep(bench.item)
        yield bench.train() is None


def leak_queue(bench: Bench) -> Iterator[object]:
    """A consumer that is a little slower than its producer."""
    for _ in range(bench.steps):
        bench.keep(bench.item)
        if bench.draw.random() < 0.6:
            del bench.kept[: bench.draw.randint(0, 2)]
        yield bench.train() is None


def leak_views_of_slices(bench: Bench) -> Iterator[object]:
    """A number out of each batch pins the whole batch of outputs."""
    for step in range(bench.steps):
        outputs = bench.train(batch=2)
        if step % 3 == 0:
            bench.kept.append(outputs.detach().flatten()[:1])
        yield None


def leak_fragments(bench: Bench) -> Iterator[object]:
    growth = bench.draw.choice((128, 256, 512)) * KIB
    for step in range(bench.steps):
        _wanting_more(bench, step, growth)
        yield bench.train() is None


def leak_fragments_late(bench: Bench) -> Iterator[object]:
    bench.onset = bench.until
    growth = bench.draw.choice((128, 256, 512)) * KIB
    for step in range(bench.steps):
        _wanting_more(bench, max(step - bench.onset, 0), growth)
        yield bench.train() is None


def _outside(bench: Bench, size: int, every: int) -> Callable[[int], None]:
    """Called with each step, takes `size` bytes outside the allocator at every `every`-th step since the onset."""
    outside = OutsideMemory()

    def take(step: int) -> None:
        if step >= bench.onset and (step - bench.onset) % every == 0:
            outside.take(size)

    return take


def leak_outside_small(bench: Bench) -> Iterator[object]:
    take = _outside(bench, bench.draw.choice((256, 512, 1024, 2048)) * KIB, 1)
    for step in range(bench.steps):
        take(step)
        yield bench.train() is None


def leak_outside_every(bench: Bench) -> Iterator[object]:
    take = _outside(bench, bench.draw.choice((2, 4, 8, 16)) * MIB, bench.draw.randint(2, 10))
    for step in range(bench.steps):
        take(step)
        yield bench.train() is None


def leak_outside_late(bench: Bench) -> Iterator[object]:
    bench.onset = int(bench.steps * bench.draw.uniform(0.4, 0.65))
    take = _outside(bench, bench.draw.choice((2, 4, 16)) * MIB, bench.draw.randint(1, 6))
    for step in range(bench.steps):
        take(step)
        yield bench.train() is None


def leak_outside_groups(bench: Bench) -> Iterator[object]:
    """A process group every ten steps: hundreds of MiB at once."""
    take = _outside(bench, bench.draw.randint(64, 330) * MIB, bench.draw.choice((10, 20, 30)))
    for step in range(bench.steps):
        take(step)
        yield bench.train() is None


def leak_outside_noise(bench: Bench) -> Iterator[object]:
    """While lengths vary and the cache is emptied, so that reserved goes up and down."""
    take = _outside(bench, bench.draw.choice((1, 2, 4)) * MIB, bench.draw.randint(1, 4))
    for step, outputs in enumerate(variable_length(bench)):
        take(step)
        yield outputs
        if step % bench.epoch == 0:
            torch.cuda.empty_cache()


NEW_LOOPS: tuple[Loop, ...] = (
    hook_last, bounded_deque, checkpoint_spikes, best_of_three, rotary_cache, shape_cache, phase_unfreezing,
    late_optimizer, accumulation, long_sawtooth, rollouts, mixed_sizes, ramp_of_requests, outside_workspace,
    outside_few, outside_start, leak_hook, leak_predictions, leak_total_loss, leak_optimizers, leak_later, leak_slowly,
    leak_slowly_kept_outputs, leak_with_eval, leak_with_sawtooth, leak_with_ramp, leak_with_walk, leak_now_and_then,
    leak_queue, leak_views_of_slices, leak_fragments, leak_fragments_late, leak_outside_small, leak_outside_every,
    leak_outside_late, leak_outside_groups, leak_outside_noise,
)  # fmt: skip
NEED_KERNELS: tuple[Loop, ...] = (side_streams, graphs_late, recompilation)
"""Loops that the fake-GPU rig cannot run."""


def signal_of(name: str) -> str | None:
    """Which signal the loop of this name leaks on; None when it does not leak."""
    if not name.startswith("leak_"):
        return None
    return {"outside": "nontorch", "fragments": "reserved"}.get(name.split("_")[1], "allocated")
