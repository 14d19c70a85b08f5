"""Derives training steps from calls of the optimizers' post-step hook. Keeps no object alive.

PyTorch's global hook fires 0, 1, 2 or n times per training step: never when GradScaler skips the step, twice when
``step()`` calls ``super().step()``, once per parameter group under DeepSpeed ZeRO, once per optimizer in a GAN or a
Megatron ``ChainedOptimizer``, once per parameter with the optimizer in backward. So hook calls are grouped in
*rounds*. A round is over when

- a parameter set that was already stepped in it is stepped again,
- a new one is stepped after an optimizer of this round died: a new model in the place of the old one, or
- an optimizer of this round comes with a parameter that is new, after as many calls as the round before had: a
  vocabulary that grows puts a new ``Parameter`` in the old one's place.

The record is written at the hook that closed the round before, which is the last of the usual order: there the
gradients and activations are at their lowest (with the optimizer in backward, the first hook comes when nearly all
activations are still alive). With one optimizer, that is every call. If the optimizer that closed the round before is
gone, the call in its position counts. The very first round is recorded at its first call, because nobody knows how
many will follow.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FrameType
from typing import Optional, Protocol

MAX_ROUND = 8192
"""Hook calls in one round before it is closed anyway: more parameters than that are stepped one by one by nobody, but
a program that keeps every model it ever stepped would otherwise be one endless round."""

_NESTED_WITHIN = 12
"""Frames to look up for an enclosing ``step()``: ``super().step()`` is two to six away (torch's decorators)."""


class HasParamGroups(Protocol):
    """The part of ``torch.optim.Optimizer`` that is read."""

    param_groups: list[dict[str, object]]


def stepped_key(optimizer: HasParamGroups) -> object:
    """A key that distinguishes hook calls in a round: the first parameter that was stepped.

    Not the optimizer: DeepSpeed ZeRO steps one optimizer once per group (or sub-group) with only that group's
    parameters in place, and wrappers share the parameters of what they wrap.
    """
    for group in optimizer.param_groups:
        params = group["params"]
        if params:
            return params[0]  # type: ignore[index] # SAFETY: a list of tensors, by Optimizer's contract
    return optimizer


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


class _Owner(weakref.ref[object]):
    """A weak reference to an optimizer, with the key of one of its parameters."""

    __slots__ = ("key",)
    key: int


class _Turn:
    """A parameter set that is stepped once a round, and the optimizer that last stepped it."""

    __slots__ = ("gone", "owner", "owner_id")

    def __init__(self) -> None:
        self.owner_id = 0
        self.owner: Optional[_Owner] = None
        """``None`` for an object without weak references, which is then known by its address alone."""
        self.gone = False

    def belongs_to(self, optimizer: object, key: int, when_gone: Callable[[_Owner], None]) -> None:
        self.owner_id, self.gone = id(optimizer), False
        try:
            self.owner = _Owner(optimizer, when_gone)
            self.owner.key = key
        except TypeError:
            self.owner = None


class StepCounter:
    """Counts training steps and decides which hook call is recorded.

    A parameter is known by its address while its optimizer lives. Only optimizers are weakly referenced:
    ``torch.utils.swap_tensors``, and so ``Module.to()`` of a DTensor, raises for a tensor that is.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Rounds begun so far, or calls of ``tidegauge.step()`` once that is used."""
        self.raw_steps = 0
        """Hook calls so far, ungrouped, nested ones included."""
        self._round: dict[int, _Turn] = {}
        """Parameter sets stepped in this round, by their first parameter's address; without those of dead owners."""
        self._size = 0
        """Hook calls in this round."""
        self._lost = False
        """Whether an optimizer of this round is gone."""
        self._before: dict[int, _Turn] = {}
        """The round before, likewise."""
        self._size_before = 0
        self._dead: list[_Owner] = []
        """Optimizers that died since the last call. The callback is the list's own ``append``, so that no code of the
        probe runs where an optimizer dies in the job."""
        self._last: Optional[_Turn] = None
        self._closer: Optional[_Turn] = None
        self._recorded = False
        self._explicit = False

    def optimizer_stepped(self, key: object, owner: object, *, nested: bool) -> bool:
        """One call of the hook; true if it is the one to record.

        ``key`` comes from ``stepped_key``; ``owner`` is the optimizer; ``nested`` calls (``super().step()``) belong to
        the outer call.
        """
        self.raw_steps += 1
        if nested or self._explicit:
            return False
        if self._dead:
            self._forget_the_dead()
        address = id(key)
        turn = self._round.get(address)
        if turn is not None:
            self._close(self._last)
        else:
            turn = self._before.get(address)
            if turn is None:
                turn = _Turn()
                if self._is_in_anothers_place(id(owner)):
                    self._close(turn if self._size == 1 else self._last)
            if self._size >= MAX_ROUND:
                self._close(self._last)
        if turn.owner_id != id(owner):
            turn.belongs_to(owner, address, self._dead.append)
        if not self._size:
            self.steps += 1
        self._round[address] = self._last = turn
        self._size += 1
        due = not self._recorded and self._is_last_of_the_usual_order(turn)
        self._recorded = self._recorded or due
        return due

    def optimizers(self) -> list[object]:
        """Those alive that were stepped in this round or the one before."""
        owners = [turn.owner for turns in (self._round, self._before) for turn in turns.values()]
        alive = [owner() for owner in owners if owner is not None]
        return list({id(one): one for one in alive if one is not None}.values())

    def _close(self, closer: Optional[_Turn]) -> None:
        self._closer = closer
        self._before, self._round = self._round, self._before
        self._round.clear()
        self._size_before, self._size = self._size, 0
        self._lost = self._recorded = False

    def _forget_the_dead(self) -> None:
        """Forget dead optimizers: other objects may have their parameters' addresses by now."""
        count = len(self._dead)  # more may come meanwhile, from a collection or another thread
        for owner in self._dead[:count]:
            for turns in (self._round, self._before):
                turn = turns.get(owner.key)
                if turn is not None and turn.owner is owner:
                    turn.gone = True
                    self._lost = self._lost or turns is self._round
                    del turns[owner.key]
        del self._dead[:count]

    def _is_in_anothers_place(self, owner_id: int) -> bool:
        if self._lost or not 0 < self._size_before <= self._size:
            return self._lost
        return any(turn.owner_id == owner_id for turn in self._round.values())

    def _is_last_of_the_usual_order(self, turn: _Turn) -> bool:
        closer = self._closer
        return closer is None or turn is closer or (closer.gone and self._size >= self._size_before)

    def explicit_step(self) -> None:
        """One call of ``tidegauge.step()``; from the first one on, hooks are counted but make no steps.

        The first call belongs to the step that the hook has just counted, if it has.
        """
        if self._explicit or self.steps == 0:
            self.steps += 1
        self._explicit = True
