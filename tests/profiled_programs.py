"""Allocator traces with Python stacks, as a training program leaves them."""

from __future__ import annotations

from array import array
from dataclasses import replace

from allocator_traces import Held, Requests
from tidegauge.analysis.profile.profile import profile_of_recording
from tidegauge.analysis.profile.recording import NamedRecording, recording_of
from tidegauge.core.allocator.trace import Frame, KnownSegment, Stack, Trace
from tidegauge.core.profile.step_profile import OwnedMemory, StepProfile

KIB, MIB = 1 << 10, 1 << 20

SITE = "/opt/site-packages/torch"
LINE = Frame("train", "train.py", 9)
MODULE = Frame("_call_impl", f"{SITE}/nn/modules/module.py", 1790)
BATCH: Stack = (LINE,)
FORWARD: Stack = (Frame("forward", "model.py", 5), MODULE, LINE)
LOSS: Stack = (Frame("cross_entropy", f"{SITE}/nn/functional.py", 3504), LINE)
GRADS: Stack = (Frame("_make_grads", f"{SITE}/autograd/__init__.py", 231), LINE)
OPTIMIZER: Stack = (Frame("adam", f"{SITE}/optim/adam.py", 791), LINE)
AGAIN: Stack = (
    Frame("forward", "model.py", 5), MODULE, Frame("recompute_fn", f"{SITE}/utils/checkpoint.py", 1500),
    Frame("unpack_hook", f"{SITE}/utils/checkpoint.py", 1200),
)  # fmt: skip
AUTOGRAD: Stack = ()
CLOSURE: Stack = (
    Frame("closure", f"{SITE[: -len('/torch')]}/lightning/pytorch/loops/optimization/automatic.py", 126),
    Frame("step", f"{SITE}/optim/adamw.py", 200),
    Frame("wrapper", f"{SITE}/optim/optimizer.py", 493),
)
"""The script's code, called by an optimizer."""
DECORATED = Frame("decorate_context", f"{SITE}/utils/_contextlib.py", 120)


class Program:
    """Allocates with stacks."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._stacks: list[Stack] = []
        self._numbers: list[int] = []

    def alloc(self, size_bytes: int, stack: Stack, *, pool: int = 0) -> Held:
        if stack and stack not in self._stacks:
            self._stacks.append(stack)
        held = self._requests.alloc(size_bytes, pool=pool)
        self._numbers.append(self._stacks.index(stack) if stack else -1)
        return held

    def free(self, *held: Held) -> None:
        self._requests.free(*held)
        self._numbers += [-1] * (2 * len(held))

    def profile(self, *owned: OwnedMemory) -> StepProfile:
        return profile_of_recording(self.recording(*owned))

    def recording(self, *owned: OwnedMemory) -> NamedRecording:
        return recording_of(self.trace(), owned=owned)

    def trace(self, *start: KnownSegment) -> Trace:
        """``start``: what was there before."""
        trace = self._requests.trace(start=start)
        return replace(trace, stack=array("i", self._numbers), stacks=tuple(self._stacks))


def a_step(program: Program) -> list[Held]:
    """One step of a model of 3 MiB; its gradients and outputs are alive when it ends."""
    batch = program.alloc(1 * MIB, BATCH)
    scratch = program.alloc(6 * MIB, FORWARD)
    activation = program.alloc(20 * MIB, FORWARD)
    program.free(scratch)
    loss = program.alloc(2 * MIB, LOSS)
    seed = program.alloc(512, GRADS)
    gradient = program.alloc(3 * MIB, AUTOGRAD)
    rest = program.alloc(40 * MIB, AUTOGRAD)
    program.free(rest, activation, seed)
    state = program.alloc(6 * MIB, OPTIMIZER)
    update = program.alloc(3 * MIB, OPTIMIZER)
    program.free(update, batch)
    return [gradient, loss, state]


def steps_of_lbfgs() -> Program:
    """Three steps, each of which calls its closure three times and keeps the last direction of 4 MiB as state."""
    program = Program()
    direction: list[Held] = []
    for _ in range(3):
        within: list[Held] = []
        for line in (343, 454, 454):
            activation = program.alloc(20 * MIB, (*FORWARD[:-1], CLOSURE[0], DECORATED, *_lbfgs(line)))
            gradient = program.alloc(3 * MIB, AUTOGRAD)
            program.free(activation)
            within += [program.alloc(4 * MIB, _lbfgs(397)), program.alloc(4 * MIB, _lbfgs(398))]
            program.free(gradient)
        latest = program.alloc(4 * MIB, _lbfgs(432))
        program.free(*direction, *within)
        direction = [latest]
    return program


def _lbfgs(line: int) -> Stack:
    return (Frame("step", f"{SITE}/optim/lbfgs.py", line), Frame("wrapper", f"{SITE}/optim/optimizer.py", 493), LINE)
