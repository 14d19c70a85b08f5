"""Tracks the program's place: the phase of the step, and the module."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from tidegauge.estimator.recording import AllocatorEventLog, Phase


class Places:
    """Sets the phase and module in the log before each operator.

    Autograd numbers what it records (``torch.autograd._get_sequence_nr``): by that number a node of the backward pass
    is known to belong to the module that recorded it.
    """

    def __init__(self, log: AllocatorEventLog) -> None:
        self._log = log
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._phase = Phase.BUILD
        self._numbers: list[int] = []
        self._owners: list[str] = []

    def name_modules(self, model: Any) -> None:
        self._names = {id(module): name for name, module in model.named_modules(prefix="model")}

    def step_begins(self) -> None:
        self._phase = self._log.phase = Phase.INPUT
        self._numbers.clear()
        self._owners.clear()

    def operator(self, name: str, backward: bool) -> None:
        """An operator is about to run."""
        if backward:
            self._log.phase = Phase.BACKWARD
            module = self._stack[-1] if self._stack else self._recorded_by(torch._C._current_autograd_node())
        else:
            self._log.phase = self._phase
            module = self._stack[-1] if self._stack else ""
            self._note_number(module)
        self._log.enter(f"{module}: {name}" if module else name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Hooks on every module and every optimizer, for as long as this lasts."""
        with ExitStack() as stack:
            for handle in (
                modules.register_module_forward_pre_hook(self._entered),
                modules.register_module_forward_hook(self._left, always_call=True),
                optimizers.register_optimizer_step_pre_hook(self._optimizer_begins),
                optimizers.register_optimizer_step_post_hook(self._optimizer_ends),
            ):
                stack.callback(handle.remove)
            yield

    def _entered(self, module: Any, _: Any) -> None:
        self._stack.append(self._names.get(id(module), type(module).__name__))
        if self._phase is Phase.INPUT:
            self._phase = Phase.FORWARD

    def _left(self, *_: Any) -> None:
        self._stack.pop()

    def _optimizer_begins(self, *_: Any) -> None:
        self._phase = Phase.OPTIMIZER

    def _optimizer_ends(self, *_: Any) -> None:
        self._phase = Phase.INPUT

    def _note_number(self, module: str) -> None:
        number = torch.autograd._get_sequence_nr()
        if not self._numbers or self._numbers[-1] < number:
            self._numbers.append(number)
            self._owners.append(module)
        elif self._numbers[-1] == number:
            self._owners[-1] = module

    def _recorded_by(self, node: Any) -> str:
        number = node._sequence_nr() if node is not None else None
        if number is None or not self._numbers:
            return ""
        position = bisect_right(self._numbers, number) - 1
        return self._owners[position] if position >= 0 else ""
