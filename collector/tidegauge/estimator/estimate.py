"""``tidegauge.estimate``: the memory that a training job needs, its parts, fitting GPUs, and savings. Beside torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Optional

from tidegauge.estimator.breakdown import most_live
from tidegauge.estimator.closed_forms import closed_forms
from tidegauge.estimator.distributed import lone_rank, with_ddp, with_fsdp2
from tidegauge.estimator.gpus import GPU_TYPES, H200, GpuType, find_gpu
from tidegauge.estimator.largest_batch import BatchRuns, by_the_line, fit, largest_batch
from tidegauge.estimator.model_facts import Build, FactFinder, checked
from tidegauge.estimator.recording import RecordedKind
from tidegauge.estimator.results import STRATEGIES, Estimate, LargestBatch
from tidegauge.estimator.runs import (
    Conditions,
    Measured,
    breakdown_of,
    peak_in_words,
    peaks_by_step,
    retries_within,
    run,
    run_again,
)
from tidegauge.estimator.savings import CHECKPOINTING, Tried, activations_of, first_line, try_changes

STATES = frozenset({RecordedKind.PARAMETER, RecordedKind.GRADIENT, RecordedKind.OPTIMIZER_STATE})


def estimate(
    build: Callable[..., Any],
    *,
    batch_size: Optional[int] = None,
    batch_argument: str = "batch_size",
    gpu: Optional[str] = None,
    world_size: int = 1,
    strategy: str = "none",
    alloc_conf: Optional[str] = None,
    torch_version: Optional[str] = None,
    steps: int = 4,
    quick: bool = False,
    say: Callable[[str], object] = str,
) -> Estimate:
    """Estimate the memory of the training job that ``build`` makes. Needs no GPU; nothing is computed.

    ``build`` returns ``(model, optimizer, step)``; ``step()`` runs one training step. Where it has an argument called
    ``batch_argument``, the largest batch that fits is looked for, starting from ``batch_size`` or its default.

    ``gpu`` is a name of ``gpus.GPU_TYPES``; without it all are answered for, and kernels are those of an H200.
    ``strategy`` says what is done to the model on ``world_size`` ranks: ``ddp``, ``fsdp2``, or ``none`` (nothing, or
    ``build`` does it itself). ``alloc_conf`` and ``torch_version`` are the job's, where they are not those of this
    process. ``quick`` leaves out changes and batch. ``say`` is told what is being done.

    Raises ``ValueError`` for wrong arguments, ``EstimateError`` for a job that cannot be run without its GPU, and
    whatever ``build`` and ``step`` raise.
    """
    gpus = GPU_TYPES if gpu is None else (find_gpu(gpu),)
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}: choose one of {', '.join(STRATEGIES)}")
    if world_size < 2 and strategy != "none":
        raise ValueError(f"strategy {strategy} needs a world size of at least 2")
    batch_size = _start_batch(build, batch_argument, batch_size)
    conditions = Conditions(
        target=replace(H200 if gpu is None else gpus[0].target, torch_version=torch_version),
        world_size=world_size,
        steps=steps,
        alloc_conf=alloc_conf,
        made_sharded=strategy == "fsdp2",
    )

    def build_with(batch: Optional[int]) -> Build:
        batch = batch_size if batch is None else batch
        bound = checked(build if batch is None else partial(build, **{batch_argument: batch}))
        if strategy == "ddp":
            return with_ddp(bound)
        return with_fsdp2(bound, world_size) if strategy == "fsdp2" else bound

    def device_bytes(batch: int) -> int:
        say(f"trying a batch of {batch}")
        return run_again(build_with(batch), conditions).device_bytes

    with lone_rank(world_size) if world_size > 1 else nullcontext():
        say("running training steps on tensors without memory")
        finder = FactFinder(build_with(None))
        measured = run(finder, conditions)
        facts = finder.facts
        assert facts is not None, "a run without an error has made the model"
        tried: list[Tried] = []
        batches: tuple[LargestBatch, ...] = ()
        note = "skipped (quick)"
        if not quick:
            runner = partial(run_again, conditions=conditions)
            for outcome in try_changes(runner, build_with, measured, facts, batch_size):
                say(f"tried {outcome.saving.change}")
                tried.append(outcome)
            batches, note = _batches(device_bytes, measured, batch_size, batch_argument, gpu, gpus)
    checkpointed = next((one.measured for one in tried if one.saving.change == CHECKPOINTING), None)
    states = most_live(measured.recording.trace, measured.recording.kinds, STATES)
    return Estimate(
        peak_allocated_bytes=measured.replayed.peak_allocated_bytes,
        peak_reserved_bytes=measured.replayed.peak_reserved_bytes,
        device_bytes=measured.device_bytes,
        breakdown=breakdown_of(measured, conditions),
        peak_at=peak_in_words(measured),
        steps=peaks_by_step(measured),
        parameters=measured.recording.parameter_count,
        world_size=world_size,
        strategy="own" if world_size > 1 and strategy == "none" else strategy,
        alloc_conf=measured.alloc_conf,
        torch_version=measured.torch_version,
        fits=tuple(fit(measured.device_bytes, one, partial(retries_within, measured)) for one in gpus),
        savings=tuple(one.saving for one in tried),
        largest_batches=batches,
        batch_note=note,
        closed_forms=closed_forms(
            facts, states, activations_of(measured), None if checkpointed is None else activations_of(checkpointed)
        ),
        assumptions=(*measured.recording.assumptions, *_assumptions(gpu, world_size, strategy)),
    )


def _start_batch(build: Callable[..., Any], argument: str, batch_size: Optional[int]) -> Optional[int]:
    """The batch to start from; ``None`` where ``build`` takes none."""
    parameter = inspect.signature(build).parameters.get(argument)
    if parameter is None:
        if batch_size is not None:
            raise ValueError(f"FUNCTION has no argument {argument!r} for the batch size {batch_size}")
        return None
    if batch_size is not None:
        return batch_size
    if isinstance(parameter.default, int) and parameter.default > 0:
        return parameter.default
    raise ValueError(f"the default of argument {argument!r} of FUNCTION is not a number above 0: give a batch size")


def _batches(
    device_bytes: Callable[[int], int],
    measured: Measured,
    batch_size: Optional[int],
    argument: str,
    gpu: Optional[str],
    gpus: tuple[GpuType, ...],
) -> tuple[tuple[LargestBatch, ...], str]:
    """The largest batches and what they rest on: searched for one GPU, read off a line for all of them."""
    if batch_size is None:
        return (), (
            f"not searched: FUNCTION has no argument {argument!r}. Write it as FUNCTION({argument}=8), or name its "
            "argument with --batch-argument"
        )
    runs = BatchRuns(device_bytes, {batch_size: measured.device_bytes})
    try:
        if gpu is not None:
            return (largest_batch(runs, gpus[0]),), f"searched with {runs.spent + 1} runs"
        runs(batch_size * 2)
    except Exception as error:  # FUNCTION's own code with a batch that its author did not foresee
        return (), f"not found: the job fails with another batch size: {type(error).__name__}: {first_line(str(error))}"
    sizes = " and ".join(map(str, sorted(runs.known)))
    return tuple(by_the_line(runs.known, one) for one in gpus), (
        f"extrapolated from batches of {sizes}; --gpu NAME searches with real runs"
    )


def _assumptions(gpu: Optional[str], world_size: int, strategy: str) -> list[str]:
    """The assumptions of the tables behind the answer."""
    found = ["CUDA context and loaded kernels: measured on an H200 (driver 580, torch 2.11); see docs/estimate.md."]
    if gpu is None:
        found.append("Kernels and their workspaces: those of an H200; choose another GPU with --gpu.")
    if world_size > 1:
        found.append(
            "NCCL buffers: measured for one communicator of two H200s; larger jobs report between half of that and "
            "several GiB."
        )
        found.append("The figures are for rank 0; other ranks need the same if their batches have the same shape.")
    if strategy == "fsdp2":
        found.append(
            "The model is created in shards (meta device); if it is first created whole on one GPU, all of its "
            "parameters must fit there."
        )
    return found
