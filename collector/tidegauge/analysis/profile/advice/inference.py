"""What would help where nothing is trained: inference, generation, evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby

from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, advised, left_out, left_out_from
from tidegauge.analysis.profile.advice.steps import RecordedSteps
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.allocator.trace import Frame, Stack
from tidegauge.core.profile.advice import AdvisedMeasure, Measure
from tidegauge.core.profile.categories import Category, StepPhase

_CACHES = ("cache_utils.py", "kv_cache", "kvcache", "init_cache", "setup_caches")
"""In a file's or a function's name; the first is where ``transformers`` keeps keys and values."""
_STAYING = (Category.PARAMETERS, Category.BUFFERS, Category.WORKSPACES, Category.COMMUNICATION, Category.CUDA_GRAPHS)
_MIN_TOGETHER, _MIN_OF_SECOND = 8, 3
"""Blocks that end at once, and how many of them a second function made: an autograd graph that ends has those of all
operations, a list of outputs or a cache mostly those of one."""


def inference(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Each measure where the recording has what it makes smaller."""
    yield advised(
        Measure.INFERENCE_MODE,
        curve,
        _without_graph(steps),
        action="Run it in torch.inference_mode(), as it seems to keep activations for a backward pass",
        price="it costs nothing",
        condition="if no gradients are needed",
        is_bound=True,
    )
    yield advised(
        Measure.SMALLER_CACHE,
        curve,
        [left_out(one.block, 0.5) for one in steps.in_order if _is_cache(steps.stack_of(one))],
        action="Keep the cache of keys and values in half the bits (fp8, or a quantized cache)",
        price="keys and values are rounded: check the outputs",
    )
    yield advised(
        Measure.SMALLER_WEIGHTS,
        curve,
        [left_out(one.block, 0.5) for one in steps.of(Category.PARAMETERS)],
        action="Keep the weights in half the bits (bf16 if they are fp32, 8 bits with torchao or bitsandbytes if bf16)",
        price="weights are rounded: check the outputs",
    )
    yield advised(
        Measure.HALF_BATCH,
        curve,
        [left_out(one.block, 0.5) for one in _growing(steps)],
        action="Halve the batch",
        price="twice as many calls, which take longer where they do not fill the GPU",
        condition="if what the forward pass allocates grows with it",
    )


def _growing(steps: RecordedSteps) -> Iterator[NamedBlock]:
    """With the batch: not what has the size of a weight, or of its copy in half the bits."""
    for one in steps.in_order:
        is_made = one.phase is StepPhase.FORWARD and one.category not in _STAYING
        if one.category is Category.INPUTS or (is_made and one.block.requested_bytes not in steps.weight_sizes):
            yield one


def _without_graph(steps: RecordedSteps) -> Iterator[LifeChange]:
    """What an autograd graph keeps ends once the second allocation after it is there: its consumer's, at best."""
    of_graphs = {one.block.stack for together in _graphs(steps) for one in together}
    for one, consumer in zip(steps.in_order, steps.in_order[2:]):
        if one.phase is StepPhase.FORWARD and one.block.stack in of_graphs:
            yield left_out_from(one.block, consumer.block.made)


def _graphs(steps: RecordedSteps) -> Iterator[list[NamedBlock]]:
    """What seems to have been kept by one autograd graph each."""
    for together in _freed_together(steps):
        if len(together) >= _MIN_TOGETHER and _of_second_function(steps, together) >= _MIN_OF_SECOND:
            yield together


def _freed_together(steps: RecordedSteps) -> Iterator[list[NamedBlock]]:
    """Of the forward pass, one after the other without an allocation between."""
    freed = [
        (steps.made_before(one.block.freed), one)
        for one in steps.in_order
        if one.phase is StepPhase.FORWARD and one.block.freed is not None
    ]
    freed.sort(key=lambda each: each[0])
    for _, together in groupby(freed, key=lambda each: each[0]):
        yield [one for _, one in together if not _is_cache(steps.stack_of(one))]


def _of_second_function(steps: RecordedSteps, blocks: Iterable[NamedBlock]) -> int:
    """How many were made by the innermost function that made the second most."""
    made = Counter(_function(stack[0]) for one in blocks if (stack := steps.stack_of(one)))
    return made.most_common(2)[1][1] if len(made) > 1 else 0


def _function(frame: Frame) -> tuple[str, str]:
    return frame.filename, frame.name


def _is_cache(stack: Stack) -> bool:
    return any(word in f"{frame.filename}:{frame.name}".lower() for frame in stack for word in _CACHES)
