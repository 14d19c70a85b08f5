"""Training loops that run into a cap, and loops whose growth ends before it: made after the detector, to try it with.

A loop whose name begins with `leak_` leaks until PyTorch's allocator raises `OutOfMemoryError`; the others live within
the same cap. They run on the rig, too: nothing depends on what a kernel computes.
"""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import gc
import math
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from leakseries.rig_loops import DEVICE, Bench

KIB = 1024
MIB = 1024 * KIB


class CappedBench(Bench):
    """A small transformer below a cap. A leak is as fast as to meet the cap after `life` steps."""

    widths = (128, 192)
    depths = (2, 3, 4)
    batches = (8, 12, 16)
    lengths = (64, 96)
    shortest, longest = 150, 750

    def __init__(self, name: str, seed: int, steps: int, cap_bytes: int, slower_s: float = 0.0) -> None:
        super().__init__(name, seed, steps)
        self.cap_bytes = cap_bytes
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(cap_bytes / total)
        for _ in range(3):
            self.train(length=2 * self.length)
        self.life = int(math.exp(self.draw.uniform(math.log(self.shortest), math.log(self.longest))))
        self.room = cap_bytes - torch.cuda.max_memory_reserved()
        self.unit = max(self.room // self.life // 512 * 512, 4096)
        self.slowness = self.draw.choice((0.0, 0.0, 0.02, 0.05)) + slower_s

    def new(self, size: float) -> Any:
        return torch.empty(max(int(size), 512), dtype=torch.uint8, device=DEVICE)

    def run(self, each: Callable[[int], object], train: Callable[[], object] | None = None) -> Iterator[object]:
        """`each` before every step."""
        for step in range(self.steps):
            each(step)
            yield (train or self.train)() is None
            time.sleep(self.slowness)


Loop = Callable[[CappedBench], Iterator[object]]


def _every(bench: CappedBench, period: int, keep: Callable[[Any], object]) -> Callable[[int], object]:
    def each(step: int) -> None:
        if step % period == period - 1:
            keep(bench.new(bench.unit * period))

    return each


# --------------------------------------------------------------------------- leaks


def leak_gradient_history(bench: CappedBench) -> Iterator[object]:
    """For the gradient noise scale: a sample of each fifth step's gradient."""
    return bench.run(_every(bench, 5, bench.kept.append))


def leak_attention_maps(bench: CappedBench) -> Iterator[object]:
    maps: dict[tuple[int, int], Any] = {}

    def each(step: int) -> None:
        for layer in range(3):
            maps[step, layer] = bench.new(bench.unit / 3)

    bench.kept.append(maps)
    return bench.run(each)


def leak_exception_frames(bench: CappedBench) -> Iterator[object]:
    def fail(step: int) -> None:
        batch = bench.new(6 * bench.unit)
        raise ValueError(f"a bad sample in step {step}, {batch.numel()}")

    def each(step: int) -> None:
        if step % 6 == 2:
            try:
                fail(step)
            except ValueError as error:
                bench.kept.append(error)

    return bench.run(each)


def leak_paused_generators(bench: CappedBench) -> Iterator[object]:
    def reader() -> Iterator[int]:
        batch = bench.new(bench.unit)
        yield batch.numel()
        yield batch.numel()

    def each(_step: int) -> None:
        paused = reader()
        next(paused)
        bench.kept.append(paused)

    return bench.run(each)


def leak_waiting_threads(bench: CappedBench) -> Iterator[object]:
    def wait(batch: Any, event: threading.Event) -> None:
        event.wait()
        batch.zero_()

    def each(step: int) -> None:
        if step % 10 == 0:
            args = (bench.new(10 * bench.unit), threading.Event())
            threading.Thread(target=wait, args=args, daemon=True).start()

    return bench.run(each)


def leak_running_loss(bench: CappedBench) -> Iterator[object]:
    """The mean loss of the run, with all its graphs."""
    before = torch.cuda.memory_allocated()
    total = bench.net(bench.inputs(1, 16)).mean()
    period = max(round((torch.cuda.memory_allocated() - before) / bench.unit), 1)

    def each(step: int) -> None:
        nonlocal total
        if step % period == 0:
            total = total + bench.net(bench.inputs(1, 16)).mean()

    return bench.run(each)


def leak_stacked_features(bench: CappedBench) -> Iterator[object]:
    """All features so far are stacked anew each 40 steps: what is stacked is there twice."""
    stacked: list[Any] = []

    def each(step: int) -> None:
        bench.kept.append(bench.new(bench.unit / 2))
        if step % 40 == 39:
            stacked[:] = [torch.stack(bench.kept)]

    return bench.run(each)


def leak_resized_table(bench: CappedBench) -> Iterator[object]:
    """A table that is copied into a larger one: both are there meanwhile."""
    table = bench.new(20 * bench.unit)

    def each(step: int) -> None:
        nonlocal table
        if step % 20 == 0:
            larger = bench.new(table.numel() + 20 * bench.unit)
            larger[: table.numel()] = table
            table = larger

    return bench.run(each)


def leak_table_each_step(bench: CappedBench) -> Iterator[object]:
    table = bench.new(bench.unit)

    def each(_step: int) -> None:
        nonlocal table
        table = torch.nn.functional.pad(table, (0, bench.unit))

    return bench.run(each)


def leak_old_optimizers(bench: CappedBench) -> Iterator[object]:
    return bench.run(_every(bench, 45, lambda state: bench.kept.append({"exp_avg": state})))


def leak_averaged_models(bench: CappedBench) -> Iterator[object]:
    return bench.run(_every(bench, max(bench.life // 9, 2), bench.kept.append))


def leak_doubling_pool(bench: CappedBench) -> Iterator[object]:
    """A buffer twice as large whenever it is full."""
    buffer, used = bench.new(2 * MIB), 0

    def each(_step: int) -> None:
        nonlocal buffer, used
        used += bench.unit
        if used > buffer.numel():
            larger = bench.new(2 * buffer.numel())
            larger[: buffer.numel()] = buffer
            buffer = larger

    return bench.run(each)


def leak_ever_faster(bench: CappedBench) -> Iterator[object]:
    return bench.run(lambda step: bench.keep(int(bench.unit * max(2 * step / bench.life, 0.02))))


def leak_ever_slower(bench: CappedBench) -> Iterator[object]:
    def size(step: int) -> float:
        return float(bench.unit * bench.life * (step / bench.life) ** 0.65)

    return bench.run(lambda step: bench.keep(max(int(size(step + 1) - size(step)), 512)))


def leak_long_batches(bench: CappedBench) -> Iterator[object]:
    def each(_step: int) -> None:
        if bench.draw.random() < 0.12:
            bench.keep(int(bench.unit / 0.12))

    return bench.run(each)


def leak_in_bursts(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        if step % 80 < 24:
            bench.keep(int(bench.unit * 80 / 24))

    return bench.run(each)


def leak_late_and_fast(bench: CappedBench) -> Iterator[object]:
    bench.onset = bench.until

    def each(step: int) -> None:
        if step >= bench.until:
            bench.keep(4 * bench.unit)

    return bench.run(each)


def leak_under_cycles(bench: CappedBench) -> Iterator[object]:
    """Beside it cycles that are collected each 70 steps."""
    gc.disable()

    def each(step: int) -> None:
        cycle: list[Any] = [bench.new(bench.room / 4 / 70)]
        cycle.append(cycle)
        bench.keep(int(0.75 * bench.unit))
        if step % 70 == 69:
            gc.collect()

    return bench.run(each)


def leak_under_wandering_lengths(bench: CappedBench) -> Iterator[object]:
    length = float(bench.length)

    def train() -> object:
        nonlocal length
        length = min(max(length + bench.draw.gauss(0, 6), 16), 2 * bench.length)
        return bench.train(length=int(length))

    return bench.run(lambda _step: bench.keep(bench.unit), train)


def leak_under_varying_lengths(bench: CappedBench) -> Iterator[object]:
    return bench.run(
        lambda _step: bench.keep(bench.unit), lambda: bench.train(length=bench.draw.randint(16, 2 * bench.length))
    )


def leak_despite_empty_cache(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        bench.keep(bench.unit)
        if step % 10 == 0:
            torch.cuda.empty_cache()

    return bench.run(each)


def leak_saved_tensors(bench: CappedBench) -> Iterator[object]:
    """What a pack hook stores is never taken out."""
    store: dict[int, Any] = {}
    bench.kept.append(store)

    def pack(_tensor: Any) -> int:
        store[len(store)] = bench.new(bench.unit)
        return len(store) - 1

    weight = torch.zeros(4, device=DEVICE, requires_grad=True)

    def each(_step: int) -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda _key: weight.detach()):
            weight.exp()

    return bench.run(each)


def leak_pinned_fragments(bench: CappedBench) -> Iterator[object]:
    """Each temporary is a little larger than all before, and leaves a small block in its place."""
    size = 12 * MIB

    def each(step: int) -> None:
        nonlocal size
        if step % 4 == 0:
            size += 256 * KIB
            temporary = bench.new(size)
            del temporary
            bench.keep(1200 * KIB)

    return bench.run(each)


def leak_default_arguments(bench: CappedBench) -> Iterator[object]:
    def each(_step: int) -> None:
        batch = bench.new(bench.unit)
        bench.kept.append(lambda scale, batch=batch: batch * scale)

    return bench.run(each)


def leak_contexts(bench: CappedBench) -> Iterator[object]:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("batch")

    def each(_step: int) -> None:
        context = contextvars.copy_context()
        context.run(variable.set, bench.new(bench.unit))
        bench.kept.append(context)

    return bench.run(each)


class _Sample:
    """A key whose value refers to it."""


def leak_weak_keys(bench: CappedBench) -> Iterator[object]:
    values: weakref.WeakKeyDictionary[_Sample, Any] = weakref.WeakKeyDictionary()
    bench.kept.append(values)

    def each(_step: int) -> None:
        key = _Sample()
        values[key] = (key, bench.new(bench.unit))

    return bench.run(each)


def leak_cached_by_learning_rate(bench: CappedBench) -> Iterator[object]:
    @functools.cache
    def table(_rate: float) -> Any:
        return bench.new(bench.unit)

    return bench.run(lambda step: table(1e-3 * 0.999**step))


def leak_coroutines(bench: CappedBench) -> Iterator[object]:
    async def upload(batch: Any, until: asyncio.Event) -> None:
        await until.wait()
        del batch

    loop = asyncio.new_event_loop()
    until = asyncio.Event()

    def each(step: int) -> None:
        if step % 3 == 0:
            bench.kept.append(loop.create_task(upload(bench.new(3 * bench.unit), until)))
            loop.run_until_complete(asyncio.sleep(0))

    return bench.run(each)


def leak_per_evaluation(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        if step % 50 == 49:
            for _ in range(5):
                bench.keep(10 * bench.unit)

    return bench.run(each)


def leak_rate_changes(bench: CappedBench) -> Iterator[object]:
    return bench.run(lambda step: bench.keep(bench.unit // 2 if step < bench.life // 2 else 2 * bench.unit))


def leak_beside_a_pause(bench: CappedBench) -> Iterator[object]:
    """Suspended for a while, then five times as fast."""
    bench.slowness = 0.05

    def each(step: int) -> None:
        bench.keep(bench.unit)
        if step == bench.life // 2:
            time.sleep(20)
            bench.slowness = 0.01

    return bench.run(each)


def leak_slow_then_cold(bench: CappedBench) -> Iterator[object]:
    """Steps become ten times slower half way."""
    bench.slowness = 0.01

    def each(step: int) -> None:
        bench.keep(bench.unit)
        if step == bench.life // 2:
            bench.slowness = 0.1

    return bench.run(each)


def leak_in_large_steps(bench: CappedBench) -> Iterator[object]:
    """Five or six steps to the end."""
    return bench.run(_every(bench, max(bench.life // 6, 2), bench.kept.append))


# --------------------------------------------------------------------------- growth that ends


def _fill(bench: CappedBench, share: float, until: int) -> Callable[[int], object]:
    size = bench.room * share / max(until, 1)
    return lambda step: bench.kept.append(bench.new(size)) if step < until else None


def queue_with_a_length(bench: CappedBench) -> Iterator[object]:
    length = bench.draw.randint(60, 400)
    recent: deque[Any] = deque(maxlen=length)
    size = bench.room * bench.draw.uniform(0.1, 0.6) / length
    return bench.run(lambda _step: recent.append(bench.new(size)))


def cache_with_a_size(bench: CappedBench) -> Iterator[object]:
    size = bench.draw.randint(80, 400)
    item = bench.room * bench.draw.uniform(0.1, 0.6) / size

    @functools.lru_cache(maxsize=size)
    def table(_key: int) -> Any:
        return bench.new(item)

    return bench.run(lambda _step: table(bench.draw.randint(0, 3 * size)))


def lru_of_uneven_items(bench: CappedBench) -> Iterator[object]:
    cache: OrderedDict[int, Any] = OrderedDict()
    limit = bench.draw.randint(50, 150)
    item = bench.room * bench.draw.uniform(0.15, 0.5) / limit

    def each(step: int) -> None:
        cache[step] = bench.new(item * bench.draw.uniform(0.2, 1.8))
        if len(cache) > limit:
            cache.popitem(last=False)

    return bench.run(each)


def bank_that_fills_at_random(bench: CappedBench) -> Iterator[object]:
    bank: dict[int, Any] = {}
    slots = bench.draw.randint(100, 300)
    item = bench.room * bench.draw.uniform(0.2, 0.6) / slots

    def each(_step: int) -> None:
        for _ in range(2):
            bank[bench.draw.randrange(slots)] = bench.new(item)

    return bench.run(each)


def buffer_that_fills(bench: CappedBench) -> Iterator[object]:
    return bench.run(_fill(bench, bench.draw.uniform(0.2, 0.7), bench.until))


def dataset_in_the_first_epoch(bench: CappedBench) -> Iterator[object]:
    return bench.run(_fill(bench, bench.draw.uniform(0.3, 0.7), int(bench.steps * bench.draw.uniform(0.15, 0.3))))


def small_buffer_early(bench: CappedBench) -> Iterator[object]:
    return bench.run(_fill(bench, bench.draw.uniform(0.02, 0.1), bench.draw.randint(60, 250)))


def best_copies(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        if bench.draw.random() < 4.0 / (step + 8):
            bench.kept = [*bench.kept[-4:], bench.new(bench.room * 0.06)]

    return bench.run(each)


def lengths_of_a_curriculum(bench: CappedBench) -> Iterator[object]:
    step = 0

    def train() -> object:
        nonlocal step
        step += 1
        return bench.train(length=16 + int(2 * bench.length * min(step / bench.until, 1)))

    return bench.run(lambda _step: None, train)


def stages_of_a_curriculum(bench: CappedBench) -> Iterator[object]:
    stages, step = bench.draw.randint(4, 9), 0

    def train() -> object:
        nonlocal step
        step += 1
        stage = int(min(step / bench.until, 1) * stages)
        return bench.train(batch=4 + 2 * stage, length=bench.draw.randint(16, bench.length))

    return bench.run(lambda _step: None, train)


def sorted_within_an_epoch(bench: CappedBench) -> Iterator[object]:
    epoch, step = bench.draw.randint(100, 300), 0

    def train() -> object:
        nonlocal step
        step += 1
        bench.kept = [bench.new(bench.room * 0.25 * (step % epoch) / epoch)]
        return bench.train(length=16 + 2 * bench.length * (step % epoch) // epoch)

    return bench.run(lambda _step: None, train)


def metrics_of_an_epoch(bench: CappedBench) -> Iterator[object]:
    epoch = bench.draw.randint(120, 400)
    item = bench.room * bench.draw.uniform(0.1, 0.5) / epoch

    def each(step: int) -> None:
        bench.keep(int(item))
        if step % epoch == epoch - 1:
            bench.kept.clear()

    return bench.run(each)


def saw_in_a_saw(bench: CappedBench) -> Iterator[object]:
    short, long = bench.draw.randint(15, 40), bench.draw.randint(150, 300)
    inner: list[Any] = []

    def each(step: int) -> None:
        inner.append(bench.new(bench.room * 0.1 / short))
        if step % short == short - 1:
            inner.clear()
            bench.keep(int(bench.room * 0.3 * short / long))
        if step % long == long - 1:
            bench.kept.clear()

    return bench.run(each)


def cycles_seldom_collected(bench: CappedBench) -> Iterator[object]:
    gc.disable()
    tooth = bench.draw.randint(80, 350)

    def each(step: int) -> None:
        cycle: list[Any] = [bench.new(bench.room * 0.4 / tooth)]
        cycle.append(cycle)
        if step % tooth == tooth - 1:
            gc.collect()

    return bench.run(each)


def rollouts(bench: CappedBench) -> Iterator[object]:
    """Forty steps that fill a buffer, forty that train on it."""

    def each(step: int) -> None:
        if step % 80 < 40:
            bench.keep(int(bench.room * 0.3 / 40 * bench.draw.uniform(0.7, 1.0)))
        elif step % 80 == 79:
            bench.kept.clear()

    return bench.run(each)


def evaluation_with_outputs(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        if step % 60 > 50:
            bench.keep(int(bench.room * 0.05))
        elif bench.kept:
            bench.kept.clear()

    return bench.run(each)


def checkpoint_copies(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        bench.kept = [copy.deepcopy(bench.net.state_dict())] if step % 75 in (0, 1, 2) else []

    return bench.run(each)


def accumulation(bench: CappedBench) -> Iterator[object]:
    period = bench.draw.choice((4, 8, 16))

    def each(step: int) -> None:
        bench.kept = [bench.new(bench.room * 0.2 * (step % period) / period)]

    return bench.run(each)


def wandering_lengths(bench: CappedBench) -> Iterator[object]:
    length = float(bench.length)

    def train() -> object:
        nonlocal length
        length = min(max(length + bench.draw.gauss(0, 5), 16), 2 * bench.length)
        bench.kept = [bench.new(bench.room * 0.3 * length / (2 * bench.length))]
        return bench.train(length=int(length))

    return bench.run(lambda _step: None, train)


def lengths_with_outputs_kept(bench: CappedBench) -> Iterator[object]:
    def train() -> object:
        length = bench.draw.randint(16, 2 * bench.length)
        bench.kept = [bench.train(length=length).detach()]
        return None

    return bench.run(lambda _step: None, train)


def slow_plateau(bench: CappedBench) -> Iterator[object]:
    share, scale = bench.draw.uniform(0.1, 0.4), bench.steps * bench.draw.uniform(0.1, 0.3)

    def each(step: int) -> None:
        bench.kept.append(bench.new(bench.room * share / scale * math.exp(-step / scale)))

    return bench.run(each)


def logarithm(bench: CappedBench) -> Iterator[object]:
    share, scale = bench.draw.uniform(0.03, 0.12), bench.draw.uniform(20, 120)
    return bench.run(lambda step: bench.keep(max(int(bench.room * share / (step + scale)), 512)))


def words_of_a_language(bench: CappedBench) -> Iterator[object]:
    """A row for each word when it first comes (Zipf)."""
    rows: dict[int, Any] = {}
    item = bench.room * 0.3 / 1500

    def each(_step: int) -> None:
        for _ in range(6):
            word = int(bench.draw.paretovariate(0.9))
            if word < 2000 and word not in rows:
                rows[word] = bench.new(item)

    return bench.run(each)


def masks_by_length(bench: CappedBench) -> Iterator[object]:
    masks: dict[int, Any] = {}

    def train() -> object:
        length = 16 + 2 * bench.draw.randint(0, bench.length)
        if length not in masks:
            masks[length] = bench.new(bench.room * 0.25 / bench.length)
        return bench.train(length=length)

    return bench.run(lambda _step: None, train)


def position_table(bench: CappedBench) -> Iterator[object]:
    longest = 0

    def train() -> object:
        nonlocal longest
        length = min(int(16 * bench.draw.paretovariate(1.2)), 2 * bench.length)
        if length > longest:
            longest = length
            bench.kept = [bench.new(bench.room * 0.2 * longest / (2 * bench.length))]
        return bench.train(length=length)

    return bench.run(lambda _step: None, train)


def side_streams(bench: CappedBench) -> Iterator[object]:
    """A stream for each of thirty buckets; what was free on one is no other's. A flush gives it back."""
    streams: list[Any] = []

    def each(step: int) -> None:
        if step % 10 == 0 and len(streams) < 30:
            streams.append(torch.cuda.Stream())
        with torch.cuda.stream(streams[step % len(streams)]):
            bench.new(bench.room * 0.02)

    return bench.run(each)


def experts_with_capacity(bench: CappedBench) -> Iterator[object]:
    def train() -> object:
        return bench.train(batch=max(1, int(bench.batch * min(bench.draw.paretovariate(2.5), 4.0) / 2)))

    return bench.run(lambda _step: None, train)


def penalty_each_sixteen(bench: CappedBench) -> Iterator[object]:
    step = 0

    def train() -> object:
        nonlocal step
        step += 1
        return bench.train(batch=2 * bench.batch if step % 16 == 0 else None)

    return bench.run(lambda _step: None, train)


def prefetch_that_fills(bench: CappedBench) -> Iterator[object]:
    """Twice as fast as it is emptied, until its 64 places are full."""
    queue: deque[Any] = deque()
    item = bench.room * 0.4 / 64

    def each(step: int) -> None:
        for _ in range(1 + step % 2):
            if len(queue) < 64:
                queue.append(bench.new(item))
        queue.popleft()

    return bench.run(each)


def phase_after_a_while(bench: CappedBench) -> Iterator[object]:
    """A second phase that fills caches of its own, ever more slowly."""
    begin, scale = bench.until, bench.draw.uniform(20, 80)

    def each(step: int) -> None:
        if step >= begin:
            bench.keep(max(int(bench.room * 0.2 / scale * math.exp(-(step - begin) / scale)), 512))

    return bench.run(each)


def one_large_rise(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        if step == bench.until:
            bench.keep(int(bench.room * 0.5))

    return bench.run(each)


def ramp_of_batches(bench: CappedBench) -> Iterator[object]:
    stairs, step = bench.draw.randint(3, 6), 0

    def train() -> object:
        nonlocal step
        step += 1
        done = int(min(step / bench.until, 1) * stairs) / stairs
        bench.kept = [bench.new(bench.room * (0.05 + 0.3 * done))]
        return bench.train(batch=max(1, int(bench.batch * (0.5 + done))))

    return bench.run(lambda _step: None, train)


def only_forward(bench: CappedBench) -> Iterator[object]:
    """Inference with answers of many lengths."""

    def train() -> object:
        with torch.no_grad():
            bench.kept = [bench.net(bench.inputs(bench.batch, bench.draw.randint(16, 2 * bench.length)))]
        return None

    return bench.run(lambda _step: None, train)


def emptied_each_epoch(bench: CappedBench) -> Iterator[object]:
    def each(step: int) -> None:
        if step % 90 == 89:
            torch.cuda.empty_cache()

    return bench.run(each, lambda: bench.train(length=bench.draw.randint(16, 2 * bench.length)))


def nothing_special(bench: CappedBench) -> Iterator[object]:
    return bench.run(lambda _step: None)


LEAKS: tuple[Loop, ...] = tuple(made for name, made in sorted(globals().items()) if name.startswith("leak_"))
HEALTHY: tuple[Loop, ...] = (
    accumulation, bank_that_fills_at_random, best_copies, buffer_that_fills, cache_with_a_size, checkpoint_copies,
    cycles_seldom_collected, dataset_in_the_first_epoch, emptied_each_epoch, evaluation_with_outputs,
    experts_with_capacity, lengths_of_a_curriculum, lengths_with_outputs_kept, logarithm, lru_of_uneven_items,
    masks_by_length, metrics_of_an_epoch, nothing_special, one_large_rise, only_forward, penalty_each_sixteen,
    phase_after_a_while, position_table, prefetch_that_fills, queue_with_a_length, ramp_of_batches, rollouts,
    saw_in_a_saw, side_streams, slow_plateau, small_buffer_early, sorted_within_an_epoch, stages_of_a_curriculum,
    wandering_lengths, words_of_a_language,
)  # fmt: skip
RESERVED = frozenset({"leak_pinned_fragments"})
"""Leaks that show in what the allocator has reserved, and less or not in what is allocated."""
NEED_KERNELS: tuple[Loop, ...] = ()
"""Not on the rig."""
