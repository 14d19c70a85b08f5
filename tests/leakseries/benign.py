"""Loops that do not leak, however much they grow on the way."""

from __future__ import annotations

import math
from collections.abc import Callable

from leakseries.machine import MIB, Machine

Loop = Callable[[Machine, int], None]


def steady(machine: Machine, steps: int) -> None:
    for _ in range(steps):
        machine.end_step()


def long_warm_up(machine: Machine, steps: int) -> None:
    """Autotuning and lazy workspaces: concave growth for the first 5 to 20 %."""
    draw = machine.random
    scale, size = steps * draw.uniform(0.02, 0.06), draw.uniform(5, 200) * MIB
    for step in range(steps):
        machine.kept = size * (1 - math.exp(-step / scale))
        machine.end_step()


def late_optimizer_state(machine: Machine, steps: int) -> None:
    """Gradient accumulation: the optimizer's state appears at the first real step."""
    at, size = machine.random.randint(3, 40), machine.base
    for step in range(steps):
        machine.kept = size if step >= at else 0
        machine.end_step()


def periodic_eval(machine: Machine, steps: int) -> None:
    draw = machine.random
    every, lasts, size = draw.randint(15, 90), draw.randint(1, 12), draw.uniform(1, 80) * MIB
    for step in range(steps):
        machine.boundary = size if step % every < lasts and step >= every else 0
        machine.end_step()


def checkpoint_spikes(machine: Machine, steps: int) -> None:
    draw = machine.random
    every, size = draw.randint(20, 110), machine.base * draw.uniform(0.3, 1)
    calm = machine.activations
    for step in range(steps):
        machine.activations = calm + (size if step % every == every - 1 else 0)
        machine.end_step()


def variable_length(machine: Machine, steps: int) -> None:
    draw = machine.random
    calm, keeps = machine.activations, draw.choice((0.0, 0.002, 0.02))
    for _ in range(steps):
        length = min(max(draw.lognormvariate(0, 0.5), 0.2), 3)
        machine.activations = calm * length
        machine.boundary = calm * length * keeps
        machine.end_step()


def random_walk_length(machine: Machine, steps: int) -> None:
    """Lengths wander between bounds; the batch is alive at the boundary, so allocated wanders with them."""
    draw = machine.random
    calm, keeps = machine.activations, draw.choice((0.0, 0.01, 0.05))
    length, pace = draw.uniform(0.3, 1.0), draw.choice((0.01, 0.03, 0.08))
    for _ in range(steps):
        length += draw.gauss(0, pace)
        length = min(max(length, 0.2), 2.0)
        machine.activations = calm * length
        machine.boundary = calm * length * keeps
        machine.end_step()


def slow_waves(machine: Machine, steps: int) -> None:
    """Correlated noise at the boundary (AR(1)), mixed data sources."""
    draw = machine.random
    size, keep, value = draw.uniform(1, 30) * MIB, draw.choice((0.9, 0.97, 0.99)), 0.0
    for _ in range(steps):
        value = keep * value + draw.gauss(0, math.sqrt(1 - keep * keep))
        machine.boundary = max(size * (3 + value), 0)
        machine.end_step()


def boundary_noise(machine: Machine, steps: int) -> None:
    draw = machine.random
    size = draw.uniform(2, 100) * MIB
    for _ in range(steps):
        machine.boundary = draw.random() * size
        machine.end_step()


def curriculum(machine: Machine, steps: int) -> None:
    """Lengths grow in stages, then stay."""
    draw = machine.random
    stages, until = draw.randint(4, 14), steps * draw.uniform(0.4, 0.7)
    calm, keeps = machine.activations, draw.choice((0.0, 0.0, 0.02))
    for step in range(steps):
        stage = min(int(step / until * stages), stages)
        length = 0.3 + 1.2 * stage / stages
        machine.activations = calm * length * draw.uniform(0.97, 1.0)
        machine.boundary = calm * length * keeps
        machine.end_step()


def batch_ramp(machine: Machine, steps: int) -> None:
    """The batch grows every few steps until a point; the batch itself may be alive at the boundary."""
    draw = machine.random
    until, calm, keeps = steps * draw.uniform(0.3, 0.7), machine.activations, draw.choice((0.0, 0.01, 0.05))
    for step in range(steps):
        size = 0.2 + 1.5 * min(step / until, 1.0)
        machine.activations = calm * size
        machine.boundary = calm * size * keeps
        machine.end_step()


def replay_buffer(machine: Machine, steps: int) -> None:
    draw = machine.random
    every, full = draw.choice((1, 1, 2, 5)), steps * draw.uniform(0.25, 0.72)
    item = draw.choice((4096, 65536, 131072, 1048576))
    for step in range(steps):
        machine.kept = int(min(step, full) / every) * item
        machine.end_step()


def late_buffer(machine: Machine, steps: int) -> None:
    """A queue that begins to fill later and is full soon."""
    draw = machine.random
    first, lasts, item = steps * draw.uniform(0.15, 0.4), steps * draw.uniform(0.1, 0.3), draw.uniform(0.05, 1) * MIB
    for step in range(steps):
        machine.kept = int(min(max(step - first, 0), lasts)) * item
        machine.end_step()


def ema_start(machine: Machine, steps: int) -> None:
    at = steps * machine.random.uniform(0.1, 0.8)
    for step in range(steps):
        machine.kept = machine.base // 4 if step >= at else 0
        machine.end_step()


def best_model_copies(machine: Machine, steps: int) -> None:
    """The best few copies are kept: irregular steps up, rarer and rarer, then replacement."""
    draw = machine.random
    copies, size, at = draw.randint(2, 5), machine.base // 7, 0.0
    gap, kept_at = steps * draw.uniform(0.06, 0.12), []
    for _ in range(copies):
        at += gap * draw.uniform(0.6, 1.6)
        kept_at.append(at)
    for step in range(steps):
        machine.kept = size * sum(step >= when for when in kept_at)
        machine.end_step()


def gc_sawtooth(machine: Machine, steps: int) -> None:
    """Reference cycles, collected every so often."""
    draw = machine.random
    tooth, size = draw.randint(20, 220), draw.uniform(0.05, 2) * MIB
    wobble, age, length = draw.choice((0.0, 0.3)), 0, tooth
    for _ in range(steps):
        age += 1
        if age >= length:
            age, length = 0, int(tooth * draw.uniform(1 - wobble, 1 + wobble))
        machine.kept = int(age * size)
        machine.end_step()


def epoch_metrics(machine: Machine, steps: int) -> None:
    """Outputs are gathered during an epoch and dropped at its end; a small part of the teeth are missing."""
    draw = machine.random
    epoch, size = max(int(steps * draw.uniform(0.08, 0.3)), 10), draw.uniform(0.05, 1) * MIB
    for step in range(steps):
        machine.kept = int((step % epoch) * size)
        machine.end_step()


def recompilation(machine: Machine, steps: int) -> None:
    """New shapes compile and keep constants and library memory: fewer and fewer of them."""
    draw = machine.random
    at, when = 5.0, []
    while at < steps * 0.6:
        when.append(at)
        at = at * draw.uniform(1.4, 2.6) + 3
    sizes = [draw.uniform(1, 40) * MIB for _ in when]
    for step in range(steps):
        machine.kept = int(sum(size for size, then in zip(sizes, when) if step >= then))
        machine.outside = 64 * MIB * (step >= 12) + machine.kept * 0.5
        machine.end_step()


def unfreezing(machine: Machine, steps: int) -> None:
    """Layer groups are unfrozen one after another: gradients and optimizer state each time."""
    draw = machine.random
    groups, until, size = draw.randint(2, 6), steps * draw.uniform(0.35, 0.6), machine.base // draw.randint(4, 12)
    for step in range(steps):
        machine.kept = size * min(int(step / until * groups), groups)
        machine.end_step()


def cuda_graphs(machine: Machine, steps: int) -> None:
    """Captures for a few batch shapes, each with its pool; then replays only."""
    draw = machine.random
    captures = sorted(draw.uniform(5, steps * 0.35) for _ in range(draw.randint(1, 8)))
    size = draw.uniform(10, 80) * MIB
    for step in range(steps):
        machine.kept = int(size * sum(step >= at for at in captures))
        machine.outside = 64 * MIB + (160 * MIB if step > captures[-1] + 20 else 0)
        machine.end_step()


def shape_cache(machine: Machine, steps: int) -> None:
    """A cache with one entry per distinct length: quick at first, then rare hits of new ones (coupon collector)."""
    draw = machine.random
    kinds, size, seen = draw.randint(10, 60), draw.uniform(0.01, 1) * MIB, set()
    for _ in range(steps):
        seen.add(draw.randrange(kinds))
        machine.kept = int(len(seen) * size)
        machine.end_step()


def empty_cache_each_epoch(machine: Machine, steps: int) -> None:
    draw = machine.random
    epoch, calm = draw.randint(30, 120), machine.activations
    for step in range(steps):
        if step % epoch == 0:
            machine.empty_cache()
        machine.activations = calm * min(max(draw.lognormvariate(0, 0.3), 0.3), 2)
        machine.end_step()


def late_workspaces(machine: Machine, steps: int) -> None:
    """Libraries take memory outside the allocator when they are first needed, now and then."""
    draw = machine.random
    jumps = [(draw.uniform(0, steps * 0.8), draw.choice((8, 32, 160)) * MIB) for _ in range(draw.randint(1, 5))]
    for step in range(steps):
        machine.outside = 64 * MIB * (step >= 12) + sum(size for at, size in jumps if step >= at)
        machine.end_step()


def alternating_phases(machine: Machine, steps: int) -> None:
    """GAN, rollout and update: two levels in turn."""
    draw = machine.random
    phase, size = draw.randint(8, 80), draw.uniform(5, 150) * MIB
    for step in range(steps):
        machine.boundary = size if (step // phase) % 2 else 0
        machine.end_step()


def early_fragmentation(machine: Machine, steps: int) -> None:
    """Varying shapes cut the cache up until it has pieces for all of them."""
    draw = machine.random
    scale, size, calm = steps * draw.uniform(0.03, 0.1), machine.base * draw.uniform(0.2, 1.5), machine.activations
    for step in range(steps):
        machine.stranded = size * (1 - math.exp(-step / scale)) * draw.uniform(0.9, 1)
        machine.activations = calm * draw.uniform(0.7, 1)
        machine.end_step()


FAMILIES: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        steady, long_warm_up, late_optimizer_state, periodic_eval, checkpoint_spikes, variable_length,
        random_walk_length, slow_waves, boundary_noise, curriculum, batch_ramp, replay_buffer, late_buffer, ema_start,
        best_model_copies, gc_sawtooth, epoch_metrics, recompilation, unfreezing, cuda_graphs, shape_cache,
        empty_cache_each_epoch, late_workspaces, alternating_phases, early_fragmentation,
    )
}  # fmt: skip
