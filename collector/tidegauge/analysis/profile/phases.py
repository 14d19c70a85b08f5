"""Phases of training steps, told by the stacks of allocations and by their order. No hook is needed.

Autograd's own thread has no Python frame, so an allocation without one is the backward pass's; optimizers and
checkpointing show in files of torch's. Everything else belongs to the phase that goes on, or, where no module is called
at all, to the forward pass of the next backward pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from tidegauge.core.allocator.trace import Action, Frame, Stack, Trace
from tidegauge.core.profile.categories import StepPhase

_OPTIMIZER = "/torch/optim/"
_WRAPS_STEPS = ("/optimizer.py", "/lr_scheduler.py")
_DECORATES = "/torch/utils/_contextlib.py"
_CHECKPOINT = "/torch/utils/checkpoint.py"
_RECOMPUTING = frozenset(("unpack_hook", "recompute_fn", "backward"))
_ENGINE_CALLS = (
    ("/torch/autograd/__init__.py", ("backward", "_make_grads")),
    ("/torch/autograd/graph.py", ("_engine_run_backward",)),
)
_TORCH = "/torch/"
"""Nothing but the engine calls torch's own code without a program around it: a ``torch.autograd.Function``, and what
FSDP does with parameters and gradients."""
_MODULE = "/torch/nn/modules/module.py"
_MODULE_CALLS = frozenset(("_call_impl", "_wrapped_call_impl"))
_ENGINE = "torch::autograd::"
_AFTER = {
    StepPhase.BACKWARD: StepPhase.BEFORE_OPTIMIZER,
    StepPhase.RECOMPUTATION: StepPhase.BEFORE_OPTIMIZER,
    StepPhase.OPTIMIZER: StepPhase.INPUT,
}
"""The phase of a stack that does not tell, after a phase that it cannot belong to."""
_BEGIN = (StepPhase.INPUT, StepPhase.FORWARD)
"""Phases that a closure begins with."""


class Stretch(NamedTuple):
    """Consecutive events of one phase."""

    phase: StepPhase
    begin: int
    end: int
    """The first event behind it."""
    backward_pass: int
    """Number of the backward pass that it belongs to, which recomputation and an optimizer within it do not interrupt;
    -1: to none."""


def phase_of_stack(stack: Stack) -> Optional[StepPhase]:
    """The phase that a stack shows by itself; ``None``: code outside of modules, autograd and optimizers."""
    python = [frame for frame in stack if frame.filename.endswith(".py")]
    if not python:
        is_engine = not stack or any(_ENGINE in frame.name for frame in stack)
        return StepPhase.BACKWARD if is_engine else None
    phase, called = None, None
    for frame in python:
        filename = frame.filename
        if _OPTIMIZER in filename:
            return phase if _is_closure(called, filename) else StepPhase.OPTIMIZER
        if filename.endswith(_CHECKPOINT) and frame.name in _RECOMPUTING:
            return StepPhase.RECOMPUTATION
        if _calls_engine(frame):
            return StepPhase.BACKWARD
        if filename.endswith(_MODULE) and frame.name in _MODULE_CALLS:
            phase = StepPhase.FORWARD
        if not filename.endswith(_DECORATES):  # LBFGS puts torch.enable_grad() around its closure
            called = frame
    outermost = python[-1]
    is_engines = _TORCH in outermost.filename and outermost.name != "<module>"
    return StepPhase.BACKWARD if is_engines else phase


def _calls_engine(frame: Frame) -> bool:
    return any(frame.filename.endswith(file) and frame.name in functions for file, functions in _ENGINE_CALLS)


def closure_steps(trace: Trace, stretches: Sequence[Stretch]) -> list[int]:
    """For each stretch, the number of the ``Optimizer.step(closure)`` that it lies in; -1: in none that is known.

    LBFGS calls its closure at several lines: a step begins with the first of them.
    """
    if not trace.stack:
        return [-1] * len(stretches)
    calls = [*map(_closure_call, trace.stacks), None]
    first: dict[str, int] = {}
    for filename, line in filter(None, calls):
        first[filename] = min(line, first.get(filename, line))
    steps, current, begun, may_begin = [], -1, -1, True
    for stretch in stretches:
        call = calls[_first_stack(trace, stretch)]
        if call is not None:
            begins = may_begin and call[1] == first[call[0]] and stretch.phase in _BEGIN
            if current < 0 or begins:
                begun += 1
                current = begun
        elif stretch.phase is not StepPhase.OPTIMIZER and not stretch.phase.is_backward:
            current = -1
        may_begin = stretch.phase not in _BEGIN
        steps.append(current)
    return steps


def _closure_call(stack: Stack) -> Optional[tuple[str, int]]:
    """The file of the optimizer whose ``step`` has called the script, and at which of its lines."""
    called, found = None, None
    for frame in stack:
        if _OPTIMIZER in frame.filename:
            if found is None and not _is_closure(called, frame.filename):
                return None
            if not frame.filename.endswith(_WRAPS_STEPS):
                found = frame.filename, frame.line
        elif frame.filename.endswith(".py") and not frame.filename.endswith(_DECORATES):
            called = frame
    return found


def _first_stack(trace: Trace, stretch: Stretch) -> int:
    """Of the first allocation in it; -1: it has none."""
    events = range(stretch.begin, stretch.end)
    return next((trace.stack[event] for event in events if trace.action[event] == Action.ALLOC), -1)


def _is_closure(called: Optional[Frame], optimizer: str) -> bool:
    """Whether an optimizer calls the script: ``Optimizer.step(closure)``, in which Lightning runs the forward pass and
    the backward pass. ``optimizer.py`` wraps the ``step`` of every optimizer, also of those that are not torch's."""
    return called is not None and _TORCH not in called.filename and not optimizer.endswith(_WRAPS_STEPS)


def stretches_of(trace: Trace) -> list[Stretch]:
    """The phases of a recording, one after the other, without a gap. ``UNKNOWN`` throughout where it has no stacks."""
    if not trace.stack or not trace.stacks:
        return [Stretch(StepPhase.UNKNOWN, 0, len(trace), -1)]
    shown = [*map(phase_of_stack, trace.stacks), StepPhase.BACKWARD]  # -1: an allocation without any frame
    phases: list[tuple[StepPhase, int]] = []
    current = StepPhase.UNKNOWN
    for event, action in enumerate(trace.action):
        if action == Action.ALLOC:
            phase = shown[trace.stack[event]] or _AFTER.get(current, current)
            if phase is not current or not phases:
                phases.append((phase, event))
                current = phase
    if len(phases) > 1 and phases[0][0] is StepPhase.UNKNOWN and phases[1][0] is StepPhase.FORWARD:
        phases[0] = (StepPhase.INPUT, 0)
    if StepPhase.FORWARD not in shown:
        phases = list(_without_modules(phases, trace))
    return _joined(phases, len(trace))


def _without_modules(phases: Sequence[tuple[StepPhase, int]], trace: Trace) -> Iterator[tuple[StepPhase, int]]:
    """Where no module is called, what comes before a call of the engine is its forward pass."""
    for (phase, begin), (after, event) in zip(phases, [*phases[1:], (StepPhase.UNKNOWN, 0)]):
        stack = trace.stack[event]
        is_called = after is StepPhase.BACKWARD and stack >= 0 and any(map(_calls_engine, trace.stacks[stack]))
        yield StepPhase.FORWARD if is_called and phase is not StepPhase.OPTIMIZER else phase, begin


def stretch_numbers(stretches: Sequence[Stretch]) -> array[int]:
    """For each event, the index of its stretch."""
    numbers = array("i")
    for number, stretch in enumerate(stretches):
        numbers.extend([number] * (stretch.end - stretch.begin))
    return numbers


def _joined(phases: Sequence[tuple[StepPhase, int]], events: int) -> list[Stretch]:
    stretches: list[Stretch] = []
    begins = [0, *(event for _, event in phases[1:])]
    passes, is_new = -1, True
    following = [phase for phase, _ in phases[1:]]
    for (phase, _), begin, end, after in zip(phases, begins, [*begins[1:], events], [*following, None]):
        if phase.is_backward:
            passes, is_new = passes + is_new, False
        is_new = is_new or phase is StepPhase.FORWARD
        if phase is StepPhase.BEFORE_OPTIMIZER and after is StepPhase.FORWARD:
            phase = StepPhase.INPUT  # an optimizer that allocates nothing leaves no trace, accumulation has none
        stretches.append(Stretch(phase, begin, end, passes if phase.is_backward else -1))
    return stretches or [Stretch(StepPhase.UNKNOWN, 0, events, -1)]
