"""Where each parameter's gradient lies when an optimizer steps: a recording alone does not tell which one is whose.

A temporary global hook before each ``step()``; none where ``torch.compile`` was called, which may have compiled a step.
Keeps no tensor alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

from tidegauge.probe.faults import Faults
from tidegauge.probe.runtime.backend import before_optimizer_steps, compiles

MAX_ADDRESSES = 100_000


class GradientAddress(NamedTuple):
    """One gradient at one step."""

    unix_us: int
    parameter: int
    """Its ``id``."""
    address: int
    """Of the gradient's storage."""
    device: int
    thread: int
    """That stepped, by ``threading.get_ident()``."""


class GradientAddresses:
    """Notes them between ``begin`` and ``end``, in ``found``, up to ``MAX_ADDRESSES``."""

    def __init__(self, torch: Any, faults: Faults) -> None:
        self.found: list[GradientAddress] = []
        self._torch = torch
        self._faults = faults
        self._remove: Optional[Callable[[], None]] = None

    def begin(self) -> None:
        try:
            if not compiles(self._torch):
                self._remove = before_optimizer_steps(self._torch, self._stepping)
        except Exception as error:
            self._faults.caught("noting gradients", error)

    def end(self) -> None:
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()

    def _stepping(self, optimizer: Any) -> None:
        try:
            if self._remove is not None:
                room = MAX_ADDRESSES - len(self.found)
                self.found += [found for found, _ in zip(_gradients(optimizer), range(room))]
        except Exception as error:
            self._faults.caught("the hook before an optimizer's step", error)
            self.end()


def _gradients(optimizer: Any) -> Iterator[GradientAddress]:
    now_us = time.time_ns() // 1000  # the clock of the recording's events
    thread = threading.get_ident()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            local = getattr(gradient, "_local_tensor", gradient)
            if getattr(local, "is_cuda", False) and not local.is_sparse:
                address = local.untyped_storage().data_ptr()
                yield GradientAddress(now_us, id(parameter), address, local.get_device(), thread)
