"""Loops that were written after the detector was tuned, and that it was never tuned on: what a new family costs."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

from leakseries.benign import Loop
from leakseries.leaks import Truth
from leakseries.machine import BLOCK, KIB, MIB, Machine


def mixture_imbalance(machine: Machine, steps: int) -> None:
    """Experts get uneven loads: heavy-tailed peaks, a share of them alive at the boundary."""
    draw = machine.random
    calm = machine.activations
    for _ in range(steps):
        load = min(draw.paretovariate(2.5), 5)
        machine.activations = calm * load
        machine.boundary = calm * 0.01 * load
        machine.end_step()


def prefetch_queue(machine: Machine, steps: int) -> None:
    """A bounded queue of batches of random size, drained now and then."""
    draw = machine.random
    queue: list[float] = []
    limit, size = draw.randint(4, 40), draw.uniform(0.1, 4) * MIB
    for _ in range(steps):
        queue.append(draw.uniform(0.2, 1) * size)
        while len(queue) > limit or (queue and draw.random() < 0.3):
            queue.pop(0)
        machine.boundary = sum(queue)
        machine.end_step()


def second_stage(machine: Machine, steps: int) -> None:
    """Pretraining, then fine-tuning in the same process: everything is freed and a larger model comes."""
    draw = machine.random
    at, size = int(steps * draw.uniform(0.3, 0.6)), draw.uniform(100, 400) * MIB
    for step in range(steps):
        if step == at:
            machine.empty_cache()
        machine.kept = int(size) if step >= at + 4 else 0
        machine.end_step()


def averaged_snapshots(machine: Machine, steps: int) -> None:
    """Snapshots are kept for averaging and pruned to two whenever there are five."""
    draw = machine.random
    every, size, held = max(int(steps * draw.uniform(0.02, 0.06)), 4), machine.base // 8, 0
    for step in range(steps):
        if step % every == every - 1:
            held = 2 if held == 5 else held + 1
        machine.kept = size * held
        machine.end_step()


def day_and_night(machine: Machine, steps: int) -> None:
    """A slow wave of the data's lengths, in peaks and at the boundary; whole periods."""
    draw = machine.random
    periods, size, calm = draw.randint(1, 4), draw.uniform(2, 60) * MIB, machine.activations
    for step in range(steps):
        wave = (1 - cos(2 * pi * periods * step / steps)) / 2
        machine.boundary = size * wave + draw.random() * size * 0.05
        machine.activations = calm * (1 + 0.5 * wave)
        machine.end_step()


def sorted_epochs(machine: Machine, steps: int) -> None:
    """Samples sorted by length within each epoch: every epoch rises like a leak and falls back."""
    draw = machine.random
    epoch, calm, keeps = max(int(steps * draw.uniform(0.1, 0.3)), 20), machine.activations, draw.choice((0.0, 0.03))
    for step in range(steps):
        length = 0.3 + 1.4 * (step % epoch) / epoch
        machine.activations = calm * length
        machine.boundary = calm * length * keeps
        machine.end_step()


def rate_doubles(machine: Machine, steps: int) -> Truth:
    """The leak is in two places, the second comes into use later."""
    draw = machine.random
    rate, at = int(32 * KIB * 2 ** draw.uniform(0, 6)) // BLOCK * BLOCK, int(steps * draw.uniform(0.3, 0.6))
    for step in range(steps):
        machine.kept = rate * (step + max(step - at, 0))
        machine.end_step()
    return Truth("allocated", 0, rate * (1 + (steps - at) / steps))


def under_random_walk(machine: Machine, steps: int) -> Truth:
    """Lengths wander; a leak runs beneath, as large at the end as the wander of the boundary."""
    draw = machine.random
    calm, length = machine.activations, 1.0
    rate = max(int(calm * 0.03 * 4 / steps) // BLOCK * BLOCK, 2048)
    for step in range(steps):
        length = min(max(length + draw.gauss(0, 0.05), 0.4), 1.4)
        machine.activations = calm * length
        machine.boundary = calm * length * 0.03
        machine.kept = rate * step
        machine.end_step()
    return Truth("allocated", 0, rate)


def after_curriculum(machine: Machine, steps: int) -> Truth:
    """The workload grows and stays; then a leak begins."""
    draw = machine.random
    until, onset = steps * draw.uniform(0.15, 0.3), int(steps * draw.uniform(0.35, 0.6))
    calm, rate = machine.activations, int(64 * KIB * 2 ** draw.uniform(0, 5)) // BLOCK * BLOCK
    for step in range(steps):
        machine.activations = calm * (0.4 + min(step / until, 1))
        machine.kept = rate * max(step - onset, 0)
        machine.end_step()
    return Truth("allocated", onset, rate)


def uneven_evaluations(machine: Machine, steps: int) -> Truth:
    """Each evaluation keeps its outputs; evaluations come at uneven times."""
    draw = machine.random
    mean, size, due = steps / draw.uniform(14, 40), draw.uniform(0.5, 20) * MIB, 0.0
    for step in range(steps):
        if step >= due:
            machine.kept += int(size * draw.uniform(0.8, 1.2))
            due = step + mean * draw.uniform(0.5, 1.5)
        machine.end_step()
    return Truth("allocated", 0, size / mean)


def pinned_windows(machine: Machine, steps: int) -> Truth:
    """Outside the allocator, under an allocator that is busy: a transport maps another window per new peer size."""
    draw = machine.random
    calm, size = machine.activations, draw.uniform(2, 30) * MIB
    taken = 0.0
    chance = draw.uniform(0.05, 0.4)
    for _ in range(steps):
        machine.activations = calm * draw.uniform(0.5, 1.5)
        taken += size if draw.random() < chance else 0
        machine.outside = 64 * MIB + taken
        machine.end_step()
    return Truth("nontorch", 0, size * chance)


BENIGN: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (mixture_imbalance, prefetch_queue, second_stage, averaged_snapshots, day_and_night, sorted_epochs)
}
LEAKS: dict[str, Callable[[Machine, int], Truth]] = {
    loop.__name__: loop
    for loop in (rate_doubles, under_random_walk, after_curriculum, uneven_evaluations, pinned_windows)
}
