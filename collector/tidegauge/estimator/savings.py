"""Measures what memory-saving changes to a job would save, each by another run. Runs beside torch.

A change is made from outside: it takes FUNCTION and returns one that makes the changed job. What cannot be changed
raises ``NotTriedError``, with the reason for people.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import torch
from torch.utils.checkpoint import checkpoint

from tidegauge.estimator.breakdown import most_live
from tidegauge.estimator.closed_forms import ModelFacts
from tidegauge.estimator.model_facts import Build, Step, optimizers_of, repeated_blocks, states_kept
from tidegauge.estimator.recording import RecordedKind
from tidegauge.estimator.results import Saving, saving_note
from tidegauge.estimator.runs import Measured

QUANTISED_BLOCK = 256
"""Numbers that share one 32-bit scale in bitsandbytes' block-wise 8-bit optimizers (2,048 in its early releases)."""
MIN_QUANTISED_ELEMENTS = 4096
"""``min_8bit_size`` of bitsandbytes: the state of smaller parameters stays in 32 bits."""


class NotTriedError(Exception):
    """The change does not apply to this job; the text says why."""


def with_checkpointing(build: Build) -> Build:
    """Keeps only the inputs of each repeated block and computes the rest again in backward."""

    def changed() -> tuple[Any, Any, Step]:
        model, optimizer, step = build()
        if hasattr(model, "gradient_checkpointing_enable"):
            # transformers' own way: it also switches off the cache of keys and values, which would be filled twice.
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            return model, optimizer, step
        blocks = repeated_blocks(model)
        if not blocks:
            raise NotTriedError("the model has no repeated blocks")
        for block in blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
        return model, optimizer, step

    return changed


def with_autocast(build: Build) -> Build:
    """Runs forward and loss under bfloat16 autocast, backward and optimizer outside of it, as PyTorch advises."""

    def changed() -> tuple[Any, Any, Step]:
        model, optimizer, step = build()
        if all(parameter.dtype != torch.float32 for parameter in model.parameters()):
            raise NotTriedError("the model has no 32-bit parameters")

        def step_under_autocast() -> object:
            with torch.autocast("cuda", dtype=torch.bfloat16), _backward_outside_autocast():
                return step()

        return model, optimizer, step_under_autocast

    return changed


@contextmanager
def _backward_outside_autocast() -> Iterator[None]:
    """While it lasts, ``backward()`` begins outside autocast, and so without its cache of 16-bit weights."""
    backward = torch.autograd.backward

    def outside(*args: Any, **kwargs: Any) -> Any:
        torch.clear_autocast_cache()
        with torch.autocast("cuda", enabled=False):
            return backward(*args, **kwargs)

    torch.autograd.backward = outside
    try:
        yield
    finally:
        torch.autograd.backward = backward


def with_8bit_state(build: Build) -> Build:
    """Keeps the optimizer's state in 8 bits with a scale for each block; one kernel a parameter updates it."""

    def changed() -> tuple[Any, Any, Step]:
        model, optimizer, step = build()
        kept = [(one, states_kept(one)) for one in optimizers_of(optimizer)]
        if not any(states for _, states in kept):
            raise NotTriedError("the optimizer has no state, or is not supported")
        for one, states in kept:
            if states:
                small = _StateIn8Bits(one.param_groups, states)
                small.state = one.state
                one.step = small.step
        return model, optimizer, step

    return changed


class _StateIn8Bits(torch.optim.Optimizer):
    """Allocates as bitsandbytes' 8-bit optimizers do; computes nothing."""

    def __init__(self, groups: list[dict[str, Any]], states: int) -> None:
        super().__init__([dict(group) for group in groups], {})
        self._states = states

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._new_state(parameter)
        return loss

    def _new_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        if parameter.numel() < MIN_QUANTISED_ELEMENTS:
            return {f"state{n}": torch.zeros_like(parameter, dtype=torch.float32) for n in range(self._states)}
        scales = -(-parameter.numel() // QUANTISED_BLOCK)
        found = {}
        for n in range(self._states):
            found[f"state{n}"] = torch.zeros_like(parameter, dtype=torch.uint8)
            found[f"absmax{n}"] = torch.zeros(scales, dtype=torch.float32, device=parameter.device)
        return found


def with_accumulation(build: Build, parts: int) -> Build:
    """Runs ``build``'s step ``parts`` times for one update: gradients add up, and the optimizer works at the end.

    ``build`` has to make a step with the batch divided by ``parts`` already.
    """

    def changed() -> tuple[Any, Any, Step]:
        model, optimizer, step = build()
        gate = _Gate(parts)
        for one in optimizers_of(optimizer):
            one.step = functools.partial(gate.update, one.step)
            one.zero_grad = functools.partial(gate.forget, one.zero_grad)
        model.zero_grad = functools.partial(gate.forget, model.zero_grad)
        return model, optimizer, functools.partial(gate.run, step)

    return changed


class _Gate:
    """Lets one update of ``parts`` through, and ``zero_grad`` only where no gradients wait for the update."""

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._part = 0
        self._asked = False
        """Whether the step has come to its update in this part."""

    def run(self, step: Step) -> object:
        result: object = None
        for part in range(self._parts):
            self._part, self._asked = part, False
            result = step()
        return result

    def update(self, update: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._asked = True
        return update(*args, **kwargs) if self._part == self._parts - 1 else None

    def forget(self, zero_grad: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        before_the_first = self._part == 0 and not self._asked
        after_the_last = self._part == self._parts - 1 and self._asked
        if before_the_first or after_the_last:
            zero_grad(*args, **kwargs)


CHECKPOINTING = "activation checkpointing of each block"
AUTOCAST = "bfloat16 autocast"
STATE = "8-bit optimizer state (block-wise, as in bitsandbytes)"
MAX_PARTS = 4
"""Into as many parts a batch is divided, where it can be."""


class Tried(NamedTuple):
    """A change and, where it could be made, its run."""

    saving: Saving
    measured: Optional[Measured]


def try_changes(
    run: Callable[[Build], Measured],
    build_with: Callable[[Optional[int]], Build],
    unchanged: Measured,
    facts: ModelFacts,
    batch_size: Optional[int],
) -> Iterator[Tried]:
    """Each change in turn.

    ``build_with(batch)`` is the job with another batch, or as it is for ``None``; ``batch_size`` is today's, ``None``
    where FUNCTION takes none. A change that fails in the user's code is reported as not tried, with its error.
    """
    as_it_is = build_with(None)
    yield _try(run, unchanged, CHECKPOINTING, with_checkpointing(as_it_is), _already(facts.checkpointed))
    yield _try(run, unchanged, AUTOCAST, with_autocast(as_it_is), _already(facts.autocast))
    yield _try(run, unchanged, STATE, with_8bit_state(as_it_is))
    parts = next((parts for parts in (MAX_PARTS, 2) if batch_size and batch_size % parts == 0), None)
    if parts is None or batch_size is None:
        reason = "FUNCTION has no batch argument" if batch_size is None else f"a batch of {batch_size} cannot be halved"
        yield Tried(Saving("gradient accumulation", None, None, reason), None)
    else:
        name = f"gradient accumulation: {parts} times {batch_size // parts} instead of {batch_size}"
        yield _try(run, unchanged, name, with_accumulation(build_with(batch_size // parts), parts))


def _already(is_so: bool) -> Optional[str]:
    return "already used by the job" if is_so else None


def _try(
    run: Callable[[Build], Measured], unchanged: Measured, change: str, build: Build, reason: Optional[str] = None
) -> Tried:
    if reason is None:
        try:
            measured = run(build)
        except NotTriedError as error:
            reason = str(error)
        except Exception as error:  # FUNCTION's own code under a change that its author did not foresee
            reason = f"the job fails with it: {type(error).__name__}: {first_line(str(error))}"
        else:
            saved_bytes = unchanged.device_bytes - measured.device_bytes
            lower_bytes = unchanged.replayed.peak_allocated_bytes - measured.replayed.peak_allocated_bytes
            note = saving_note(saved_bytes, lower_bytes)
            return Tried(Saving(change, measured.device_bytes, saved_bytes, note), measured)
    return Tried(Saving(change, None, None, reason), None)


def first_line(text: str) -> str:
    """The first line of a message, short enough for a table."""
    return (text.strip().splitlines() or [""])[0][:160]


def activations_of(measured: Measured) -> int:
    """The most that activations ever hold together."""
    return most_live(measured.recording.trace, measured.recording.kinds, frozenset({RecordedKind.ACTIVATION}))
