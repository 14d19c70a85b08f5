"""Loops that leak. Each returns which signal grows, since when, and how fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from leakseries.machine import BLOCK, KIB, MIB, Machine


class Truth(NamedTuple):
    """What the loop did."""

    signal: str
    onset_step: int
    bytes_per_step: float
    note: bool = False


Loop = Callable[[Machine, int], Truth]


def _rate(machine: Machine) -> int:
    """Bytes a step, from 16 KiB to 4 MiB, evenly in the logarithm, in blocks."""
    return int(16 * KIB * 2 ** machine.random.uniform(0, 8)) // BLOCK * BLOCK


def linear(machine: Machine, steps: int) -> Truth:
    rate = _rate(machine)
    for step in range(steps):
        machine.kept = rate * step
        machine.end_step()
    return Truth("allocated", 0, rate)


def losses_kept(machine: Machine, steps: int) -> Truth:
    rate = machine.random.choice((512, 512, 1024, 2048))
    for step in range(steps):
        machine.kept = rate * step
        machine.end_step()
    return Truth("allocated", 0, rate, note=True)


def every_few_steps(machine: Machine, steps: int) -> Truth:
    every, size = machine.random.randint(2, 12), _rate(machine) * 4
    for step in range(steps):
        machine.kept = size * (step // every)
        machine.end_step()
    return Truth("allocated", 0, size / every)


def staircase(machine: Machine, steps: int) -> Truth:
    """Something is kept once an epoch; epochs are regular to a few steps."""
    draw = machine.random
    epoch, size, at, rises = max(steps // draw.randint(5, 20), 10), _rate(machine) * 16, 0.0, 0
    first = epoch
    at = epoch
    for step in range(steps):
        if step >= at:
            rises += 1
            at += epoch * draw.uniform(0.95, 1.05)
        machine.kept = size * rises
        machine.end_step()
    return Truth("allocated", first, size / epoch)


def late_linear(machine: Machine, steps: int) -> Truth:
    rate, onset = _rate(machine), int(steps * machine.random.uniform(0.3, 0.68))
    for step in range(steps):
        machine.kept = rate * max(step - onset, 0)
        machine.end_step()
    return Truth("allocated", onset, rate)


def late_staircase(machine: Machine, steps: int) -> Truth:
    onset = int(steps * machine.random.uniform(0.2, 0.5))
    epoch, size = max((steps - onset) // machine.random.randint(6, 12), 5), _rate(machine) * 16
    for step in range(steps):
        machine.kept = size * (max(step - onset, 0) // epoch)
        machine.end_step()
    return Truth("allocated", onset + epoch, size / epoch)


def slow_under_peaks(machine: Machine, steps: int) -> Truth:
    """Length noise hundreds of times larger in the peak, a little of it alive at the boundary."""
    draw = machine.random
    calm = machine.activations
    rate = max(int(calm / draw.uniform(2000, 8000)) // BLOCK * BLOCK, 4096)
    for step in range(steps):
        machine.activations = calm * draw.uniform(0.2, 2)
        machine.boundary = rate * draw.uniform(0, 20)
        machine.kept = rate * step
        machine.end_step()
    return Truth("allocated", 0, rate)


def slow_under_boundary_noise(machine: Machine, steps: int) -> Truth:
    """Independent noise of up to 150 times the leak, in allocated itself."""
    draw = machine.random
    rate = _rate(machine)
    noise = rate * draw.uniform(50, 150)
    for step in range(steps):
        machine.boundary = noise * draw.random()
        machine.kept = rate * step
        machine.end_step()
    return Truth("allocated", 0, rate)


def random_events(machine: Machine, steps: int) -> Truth:
    """Something rare (an exception, a long sample) leaks."""
    draw = machine.random
    chance, size = draw.uniform(0.04, 0.3), _rate(machine) * 8
    for _ in range(steps):
        machine.kept += int(size * draw.uniform(0.5, 1.5)) if draw.random() < chance else 0
        machine.end_step()
    return Truth("allocated", 0, size * chance)


def accelerating(machine: Machine, steps: int) -> Truth:
    rate = _rate(machine)
    for step in range(steps):
        machine.kept = int(rate * step * step / steps)
        machine.end_step()
    return Truth("allocated", 0, rate)


def with_eval(machine: Machine, steps: int) -> Truth:
    draw = machine.random
    every, lasts, rate = draw.randint(20, 70), draw.randint(1, 8), _rate(machine)
    for step in range(steps):
        machine.boundary = 40 * MIB if step % every < lasts else 0
        machine.kept = rate * step
        machine.end_step()
    return Truth("allocated", 0, rate)


def with_gc_sawtooth(machine: Machine, steps: int) -> Truth:
    draw = machine.random
    tooth, rate = draw.randint(8, 40), _rate(machine)
    for step in range(steps):
        machine.boundary = 3 * rate * (step % tooth)
        machine.kept = rate * step
        machine.end_step()
    return Truth("allocated", 0, rate)


def after_warm_up(machine: Machine, steps: int) -> Truth:
    """A jump early (optimizer, EMA), then a leak."""
    draw = machine.random
    at, size, rate = draw.randint(3, 60), draw.uniform(10, 300) * MIB, _rate(machine)
    for step in range(steps):
        machine.kept = int(size * (step >= at)) + rate * step
        machine.end_step()
    return Truth("allocated", 0, rate)


def fragmentation(machine: Machine, steps: int) -> Truth:
    """Holes that nothing fits into: reserved grows, in bursts, tensors hardly."""
    draw = machine.random
    rate, bend, calm = machine.base * draw.uniform(0.002, 0.02), draw.uniform(1, 2), machine.activations
    for step in range(steps):
        machine.stranded = max(machine.stranded, rate * steps * (step / steps) ** bend * draw.uniform(0.9, 1))
        machine.activations = calm * (1 + 0.2 * step / steps) * draw.uniform(0.8, 1)
        machine.end_step()
    return Truth("reserved", 0, rate)


def late_fragmentation(machine: Machine, steps: int) -> Truth:
    draw = machine.random
    rate, onset, calm = (
        machine.base * draw.uniform(0.003, 0.02),
        int(steps * draw.uniform(0.2, 0.55)),
        machine.activations,
    )
    for step in range(steps):
        machine.stranded = rate * max(step - onset, 0)
        machine.activations = calm * draw.uniform(0.8, 1)
        machine.end_step()
    return Truth("reserved", onset, rate)


def outside_steps(machine: Machine, steps: int) -> Truth:
    """A library takes a few pages every so often."""
    draw = machine.random
    every, size = draw.randint(1, 20), draw.choice((2, 4, 8, 16)) * MIB
    for step in range(steps):
        machine.outside = 64 * MIB * (step >= 12) + size * (step // every)
        machine.end_step()
    return Truth("nontorch", 0, size / every)


def outside_groups(machine: Machine, steps: int) -> Truth:
    """A new communicator each time: hundreds of MiB, every 10 to 40 steps."""
    draw = machine.random
    every, size = draw.randint(10, max(11, min(40, steps // 8))), draw.uniform(60, 600) * MIB
    for step in range(steps):
        machine.outside = 64 * MIB * (step >= 12) + size * (step // every)
        machine.end_step()
    return Truth("nontorch", 0, size / every)


def outside_late(machine: Machine, steps: int) -> Truth:
    draw = machine.random
    onset, rate, calm = int(steps * draw.uniform(0.25, 0.6)), draw.uniform(0.3, 4) * MIB, machine.activations
    for step in range(steps):
        machine.activations = calm * draw.uniform(0.6, 1)
        machine.outside = 64 * MIB * (step >= 12) + rate * max(step - onset, 0)
        machine.end_step()
    return Truth("nontorch", onset, rate)


FAMILIES: dict[str, Loop] = {
    loop.__name__: loop
    for loop in (
        linear, losses_kept, every_few_steps, staircase, late_linear, late_staircase, slow_under_peaks,
        slow_under_boundary_noise, random_events, accelerating, with_eval, with_gc_sawtooth, after_warm_up,
        fragmentation, late_fragmentation, outside_steps, outside_groups, outside_late,
    )
}  # fmt: skip
