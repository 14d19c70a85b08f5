"""Runs functions in forked processes that share one GPU, as many at a time as memory and a budget of time allow."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

POLL_S = 0.02


class Task(NamedTuple):
    """One function to run in a process of its own; it writes its results to files itself."""

    name: str
    function: Callable[..., object]
    arguments: tuple[Any, ...]
    gib: float
    """Device memory that it may take at its peak, context included."""
    limit_s: float
    """It is ended when it takes longer."""


class _Running(NamedTuple):
    task: Task
    process: BaseProcess
    since_s: float


class Outcome(NamedTuple):
    """What became of some tasks, by name."""

    failed: tuple[str, ...]
    left_out: tuple[str, ...]


class Workers:
    """A fork a task: what the parent has imported is there at once. The parent must never touch CUDA."""

    def __init__(self, *, count: int, gib: float) -> None:
        self._count = count
        self._gib = gib
        self._running: list[_Running] = []
        self._failed: list[str] = []

    def run(self, tasks: Sequence[Task], budget_s: float) -> Outcome:
        """Run them in order; none is begun when `budget_s` is over."""
        begin_s = time.monotonic()
        left_out = []
        self._failed = []
        for task in tasks:
            while self._running and not self._has_room(task):
                self._reap()
            if time.monotonic() - begin_s > budget_s:
                left_out.append(task.name)
            else:
                self._start(task)
        while self._running:
            self._reap()
        return Outcome(tuple(self._failed), tuple(left_out))

    def _has_room(self, task: Task) -> bool:
        taken = sum(entry.task.gib for entry in self._running)
        return len(self._running) < self._count and taken + task.gib <= self._gib

    def _start(self, task: Task) -> None:
        process = multiprocessing.get_context("fork").Process(target=_carry_out, args=(task,))
        process.start()
        self._running.append(_Running(task, process, time.monotonic()))

    def _reap(self) -> None:
        time.sleep(POLL_S)
        for entry in list(self._running):
            if entry.process.is_alive() and time.monotonic() - entry.since_s > entry.task.limit_s:
                print(f"ended after {entry.task.limit_s:.0f} s: {entry.task.name}", flush=True)
                entry.process.kill()
                entry.process.join()
            if not entry.process.is_alive():
                self._running.remove(entry)
                if entry.process.exitcode != 0:
                    self._failed.append(entry.task.name)


def _carry_out(task: Task) -> None:
    try:
        task.function(*task.arguments)
    except BaseException:
        traceback.print_exc(limit=-3)
        os._exit(1)
    os._exit(0)  # no tear-down of contexts and threads
