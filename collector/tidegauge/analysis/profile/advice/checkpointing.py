"""Activation checkpointing: blocks keep their input alone, and compute the rest again when the backward pass comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.advice.autocast import cached_casts
from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, left_out_from
from tidegauge.analysis.profile.advice.repeats import Call, RepeatedBlocks, repeated_blocks
from tidegauge.analysis.profile.advice.steps import Pass, RecordedSteps
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.allocator.trace import Frame, Stack
from tidegauge.core.evidence.owners import is_library
from tidegauge.core.profile.advice import AdvisedMeasure, Measure
from tidegauge.core.profile.categories import Category

MIN_FURTHER_SHARE = 0.01
"""Of today's peak, that a further kind of blocks has to save beside the first."""


def checkpointing(steps: RecordedSteps, curve: Curve) -> Iterator[AdvisedMeasure]:
    """Of all kinds of repeated blocks, the one whose checkpointing lowers the peak most, and those beside it that lower
    it further, as the decoder's beside the encoder's."""
    found: dict[Stack, _Tried] = {}
    for one in steps.passes:
        casts = cached_casts(steps, one)
        for blocks in repeated_blocks(steps.made_forward(one), steps.recording.trace.stacks):
            tried = found.get(blocks.kind, _Tried(0, blocks.site, (), frozenset()))
            changes = (*tried.changes, *_changes(steps, one, blocks, casts))
            made = tried.made.union(own.block.made for call in blocks.calls for own in call.made)
            found[blocks.kind] = _Tried(max(tried.blocks, len(blocks.calls)), tried.site, changes, made)
    today = curve.peak_bytes()
    peaks = [(curve.peak_bytes(tried.changes), tried) for tried in found.values()]
    by_peak = sorted(peaks, key=lambda one: (one[0], one[1].blocks))
    if by_peak:
        peak_bytes, best = by_peak[0]
        chosen = [best]
        for _, tried in by_peak[1:]:
            if all(tried.made.isdisjoint(one.made) for one in chosen):
                together = curve.peak_bytes(change for one in (*chosen, tried) for change in one.changes)
                if peak_bytes - together >= MIN_FURTHER_SHARE * today:
                    peak_bytes, chosen = together, [*chosen, tried]
        named = " and ".join(f"the {one.blocks} blocks ({place_of(one.site)})" for one in chosen)
        yield AdvisedMeasure(
            Measure.CHECKPOINTING,
            peak_bytes,
            today - peak_bytes,
            action=f"Checkpoint {named}",
            price="a step computes each block's forward pass twice",
        )


class _Tried(NamedTuple):
    blocks: int
    site: Stack
    changes: tuple[LifeChange, ...]
    made: frozenset[int]
    """By which events: blocks within blocks share them."""


def place_of(stack: Stack) -> str:
    """The innermost line of the user's own, for people."""
    frame = next((frame for frame in stack if not is_library(frame.filename)), stack[0])
    return short_place(frame)


def short_place(frame: Frame) -> str:
    """File name without its folder, and number."""
    return f"{frame.filename.replace(chr(92), '/').rpartition('/')[2]}:{frame.line}"


def _changes(steps: RecordedSteps, one: Pass, blocks: RepeatedBlocks, casts: frozenset[int]) -> Iterator[LifeChange]:
    activations = steps.activations(one)
    for call in blocks.calls:
        kept = call.kept
        if not kept:
            continue
        later = [other for other in activations if other.block.made > call.last]
        left = later[0].block.made if later else one.backward
        own_use = _own_use_of_output(steps, one, call)
        again = begins_again(steps, one, call)
        for own in kept:
            # Autocast keeps the copies that it makes of weights until its region ends.
            begin = one.backward if own.block.made in casts else left
            yield left_out_from(own.block, begin, again)
            yield left_out_from(own.block, _freed_again(steps, one, own))
        output = call.output
        if output is not None and call is not blocks.calls[-1] and output.block.freed is not None:
            # Where nothing kept the output until now, the next block keeps it as its input.
            yield LifeChange(output.block.freed, max(again, output.block.freed), output.block.size_bytes)
        # While it computes again, what the block freed by itself in the forward pass is there once more.
        made = call.made if own_use is not None else [other for other in call.made if other is not output]
        yield LifeChange(again, again + 1, _more_while_computing(made, kept[-1].block.made))


def begins_again(steps: RecordedSteps, one: Pass, call: Call) -> int:
    """The event after which the backward pass reaches the block: what was made behind it is freed by then."""
    own_use = _own_use_of_output(steps, one, call)
    if own_use is not None:
        return own_use - 1
    own = min((kept.block.freed for kept in call.kept if kept.block.freed is not None), default=one.end)
    later = steps.made_in(call.last + 1, one.backward)
    behind = [other for other in later if other.category is Category.ACTIVATIONS]
    if call.output is not None:
        behind.append(call.output)
    freed = [other.block.freed for other in behind if other.block.freed is not None]
    return max([one.backward - 1, *(event for event in freed if event < own)])


def _own_use_of_output(steps: RecordedSteps, one: Pass, call: Call) -> Optional[int]:
    """The event at which the block's own backward pass begins, where that needs the output as well: after ReLU, say.

    Then the output is still there when the first operation of the next block is done, which ends with the gradients of
    its parameters. ``None``: it is freed with that operation, or nothing keeps it.
    """
    output = call.output
    if output is None or output.category is not Category.ACTIVATIONS or output.block.freed is None:
        return None
    made = steps.made_in(one.backward, output.block.freed)
    gradients = [other.block.made for other in made if other.category is Category.GRADIENTS]
    if not gradients:
        return None
    for other in steps.made_in(gradients[-1] + 1, output.block.freed):
        is_scratch = other.block.freed is not None and other.block.freed <= output.block.freed
        # An operation gives back what it was given, when it is done.
        if not is_scratch and steps.frees_between(gradients[-1], other.block.made):
            return other.block.made
    return None


def _freed_again(steps: RecordedSteps, one: Pass, own: NamedBlock) -> int:
    """The event after which a kept block is gone once it was computed again: the operation that needed it drops it
    before its bias gets its gradient, whose sum takes scratch memory; what was kept since the forward pass stays."""
    freed = steps.events if own.block.freed is None else own.block.freed
    weight = bias = None
    for other in reversed(steps.made_in(max(one.backward, own.block.made), freed)):
        if other.category is Category.GRADIENTS:
            if bias is not None:
                weight = other
                break
            bias = other
        elif bias is not None or other.block.freed is None or other.block.freed > freed:
            break
    is_bias = weight is not None and bias is not None and weight.block.size_bytes > bias.block.size_bytes
    return bias.block.made if is_bias and bias is not None else freed


def _more_while_computing(made: Sequence[NamedBlock], last: int) -> int:
    """The most that the blocks of a forward pass take at a time until the event ``last``, less what they keep."""
    changes: list[tuple[int, int]] = []
    kept_bytes = 0
    for one in made:
        if one.block.made <= last:
            changes.append((one.block.made, one.block.size_bytes))
            if one.block.freed is not None and one.block.freed <= last:
                changes.append((one.block.freed, -one.block.size_bytes))
        if one.category is Category.ACTIVATIONS:
            kept_bytes += one.block.size_bytes
    highest = held = 0
    for _, more_bytes in sorted(changes):
        held += more_bytes
        highest = max(highest, held)
    return max(0, highest - kept_bytes)
