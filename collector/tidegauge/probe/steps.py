"""From calls of the optimizers' post-step hook to training steps. Values in, values out.

PyTorch's global hook fires 0, 1, 2 or n times per training step: never when GradScaler skips the step, twice when
``step()`` calls ``super().step()``, once per parameter group under DeepSpeed ZeRO, once per optimizer in a GAN or a
Megatron ``ChainedOptimizer``, once per parameter with the optimizer in backward. So hook calls are grouped in
*rounds*: a round is over when a parameter set that was already stepped in it is stepped again, or when an optimizer
that was comes back with a parameter that is new after as many calls as the round before had: a vocabulary that grows
puts a new ``Parameter`` in the old one's place.

The record is written at the hook that closed the round before, which is the last of the usual order: there the
gradients and activations are at their lowest (with the optimizer in backward, the first hook comes when nearly all
activations are still alive). With one optimizer, that is every call. The very first round is recorded at its first
call, because nobody knows how many will follow.
"""

from __future__ import annotations

from types import FrameType
from typing import Optional, Protocol

MAX_ROUND = 8192
"""Hook calls in one round before it is closed anyway: more parameters than that are stepped one by one by nobody, but
a program that makes new parameters for every step would otherwise be one endless round."""

_NESTED_WITHIN = 12
"""Frames to look up for an enclosing ``step()``: ``super().step()`` is two to six away (torch's decorators)."""


class HasParamGroups(Protocol):
    """The part of ``torch.optim.Optimizer`` that is looked at."""

    param_groups: list[dict[str, object]]


def stepped_key(optimizer: HasParamGroups) -> int:
    """What tells one hook call from another in a round: the identity of the first parameter that was stepped.

    Not the optimizer's: DeepSpeed ZeRO steps one optimizer once per group (or sub-group) with only that group's
    parameters in place, and wrappers share the parameters of what they wrap.
    """
    for group in optimizer.param_groups:
        params = group["params"]
        if params:
            return id(params[0])  # type: ignore[index] # SAFETY: a list of tensors, by Optimizer's contract
    return id(optimizer)


def inside_another_step(hook_caller: FrameType) -> bool:
    """Whether the ``step()`` whose post hook is running was called by another ``step()``.

    ``hook_caller`` is the frame of torch's wrapper around ``step``; all optimizers share its code object. A walk up
    the stack needs no state, so an exception in a ``step()`` leaves nothing behind that would spoil the count.
    """
    code = hook_caller.f_code
    frame = hook_caller.f_back
    for _ in range(_NESTED_WITHIN):
        if frame is None:
            return False
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False


class StepCounter:
    """Counts training steps and says when one should be recorded."""

    def __init__(self) -> None:
        self.steps = 0
        """Rounds begun so far, or calls of ``tidegauge.step()`` once that is used."""
        self.raw_steps = 0
        """Hook calls so far, ungrouped, nested ones included."""
        self._round: dict[int, int] = {}
        """Keys stepped in this round, and whose they are."""
        self._before: frozenset[int] = frozenset()
        """Keys of the round before."""
        self._last: Optional[int] = None
        self._closer: Optional[int] = None
        self._recorded = False
        self._explicit = False

    def optimizer_stepped(self, key: int, owner: int, *, nested: bool) -> bool:
        """One call of the hook; true if it is the one to record.

        ``key`` comes from ``stepped_key``; ``owner`` is the optimizer's identity; ``nested`` calls
        (``super().step()``) belong to the outer call.
        """
        self.raw_steps += 1
        if nested or self._explicit:
            return False
        replaced = self._is_in_anothers_place(key, owner)
        if replaced or key in self._round or len(self._round) >= MAX_ROUND:
            self._closer = key if replaced and len(self._round) == 1 else self._last
            self._before = frozenset(self._round)
            self._round.clear()
        if not self._round:
            self.steps += 1
            self._recorded = False
        self._round[key] = owner
        self._last = key
        due = not self._recorded and (self._closer is None or key == self._closer)
        self._recorded = self._recorded or due
        return due

    def _is_in_anothers_place(self, key: int, owner: int) -> bool:
        before = self._before
        is_new = key not in self._round and key not in before
        return is_new and 0 < len(before) <= len(self._round) and owner in self._round.values()

    def explicit_step(self) -> bool:
        """One call of ``tidegauge.step()``; from the first one on, hooks are counted but make no steps.

        The first call belongs to the step that the hook has just counted, if it has.
        """
        if self._explicit or self.steps == 0:
            self.steps += 1
        self._explicit = True
        return True
