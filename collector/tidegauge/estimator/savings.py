"""Measures what changes to a job would save, each by another run. Runs beside torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Optional

from tidegauge.estimator.breakdown import most_live
from tidegauge.estimator.changes import (
    NotTriedError,
    with_8bit_state,
    with_accumulation,
    with_autocast,
    with_checkpointing,
)
from tidegauge.estimator.closed_forms import ModelFacts
from tidegauge.estimator.model_facts import Build
from tidegauge.estimator.recording import RecordedKind
from tidegauge.estimator.results import Saving
from tidegauge.estimator.runs import Measured

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
    device_bytes: int,
    facts: ModelFacts,
    batch_size: Optional[int],
) -> Iterator[Tried]:
    """Each change in turn.

    ``build_with(batch)`` is the job with another batch, or as it is for ``None``; ``batch_size`` is today's, ``None``
    where FUNCTION takes none. A change that fails in the user's code is reported as not tried, with its error.
    """
    as_it_is = build_with(None)
    yield _try(run, device_bytes, CHECKPOINTING, with_checkpointing(as_it_is), _already(facts.checkpointed))
    yield _try(run, device_bytes, AUTOCAST, with_autocast(as_it_is), _already(facts.autocast))
    yield _try(run, device_bytes, STATE, with_8bit_state(as_it_is))
    parts = next((parts for parts in (MAX_PARTS, 2) if batch_size and batch_size % parts == 0), None)
    if parts is None or batch_size is None:
        reason = "FUNCTION has no batch argument" if batch_size is None else f"a batch of {batch_size} cannot be halved"
        yield Tried(Saving("gradient accumulation", None, None, reason), None)
    else:
        name = f"gradient accumulation: {parts} times {batch_size // parts} instead of {batch_size}"
        yield _try(run, device_bytes, name, with_accumulation(build_with(batch_size // parts), parts))


def _already(is_so: bool) -> Optional[str]:
    return "already used by the job" if is_so else None


def _try(
    run: Callable[[Build], Measured], device_bytes: int, change: str, build: Build, reason: Optional[str] = None
) -> Tried:
    if reason is None:
        try:
            measured = run(build)
        except NotTriedError as error:
            reason = str(error)
        except Exception as error:  # FUNCTION's own code under a change that its author did not foresee
            reason = f"the job fails with it: {type(error).__name__}: {first_line(str(error))}"
        else:
            needed = measured.device_bytes
            return Tried(Saving(change, needed, device_bytes - needed), measured)
    return Tried(Saving(change, None, None, reason), None)


def first_line(text: str) -> str:
    """The first line of a message, short enough for a table."""
    return (text.strip().splitlines() or [""])[0][:160]


def activations_of(measured: Measured) -> int:
    """The most that activations ever hold together."""
    return most_live(measured.trace, measured.kinds, frozenset({RecordedKind.ACTIVATION}))
