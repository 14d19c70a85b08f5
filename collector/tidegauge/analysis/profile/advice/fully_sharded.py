"""Everything sharded over ranks by FSDP2: the blocks of a model are whole only while they are at work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.advice.checkpointing import begins_again, place_of
from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, advised, left_out, left_out_from
from tidegauge.analysis.profile.advice.repeats import RepeatedBlocks, repeated_blocks
from tidegauge.analysis.profile.advice.steps import Pass, RecordedSteps
from tidegauge.analysis.profile.recording import NamedBlock
from tidegauge.core.profile.advice import AdvisedMeasure, Measure
from tidegauge.core.profile.categories import Category, StepPhase


def fully_sharded(steps: RecordedSteps, curve: Curve, ranks: int) -> Iterator[AdvisedMeasure]:
    """``fully_shard`` around each of the outermost repeated blocks, then around the model."""
    if steps.of(Category.COMMUNICATION):
        return  # the job is distributed already: what its own buffers would become is not known
    share = 1 - 1 / ranks
    changes = [left_out(one.block, share) for one in steps.of(Category.PARAMETERS, Category.OPTIMIZER_STATE)]
    scratch = (one.block for one in steps.of(Category.TEMPORARIES) if one.phase is StepPhase.OPTIMIZER)
    changes += [left_out(one, share) for one in scratch]
    place = None
    for one in steps.passes:
        blocks = _outermost(steps, one)
        if blocks is None:
            return
        place = f"{len(blocks.calls)} blocks ({place_of(blocks.site)})"
        changes += _changes(steps, one, blocks, ranks)
    if place is None:
        return  # nothing is trained
    yield advised(
        Measure.FULLY_SHARDED,
        curve,
        changes,
        action=f"Shard everything over {ranks} ranks (FSDP2: fully_shard on the {place} and on the model)",
        price="each step gathers the parameters twice and scatters the gradients",
        condition="with this batch on each rank",
    )


def _outermost(steps: RecordedSteps, one: Pass) -> Optional[RepeatedBlocks]:
    """The kind of blocks that allocates most in the forward pass: those within them allocate a part of it."""
    kinds = repeated_blocks(steps.made_forward(one), steps.recording.trace.stacks)
    return max(kinds, key=lambda kind: (sum(len(call.made) for call in kind.calls), -len(kind.calls)), default=None)


class _Unit(NamedTuple):
    """A block, as FSDP shards it."""

    forward: tuple[int, int]
    """The event before its forward pass, and the last one in it."""
    backward: tuple[int, int]
    """The event before its backward pass, and the last one in it."""
    gradients: Sequence[NamedBlock]

    @property
    def whole_bytes(self) -> int:
        """Its parameters, as many bytes as their gradients."""
        return sum(one.block.size_bytes for one in self.gradients)


def _changes(steps: RecordedSteps, one: Pass, blocks: RepeatedBlocks, ranks: int) -> Iterator[LifeChange]:
    gradients = steps.gradients(one)
    units = list(_units(steps, one, blocks, gradients))
    in_blocks = {gradient.block.made for unit in units for gradient in unit.gradients}
    rest = [gradient for gradient in gradients if gradient.block.made not in in_blocks]
    root = _Unit((one.forward - 1, one.backward), (one.backward, one.end - 1), rest)
    # The model's own parameters are gathered first and stay whole until its backward pass is over.
    yield LifeChange(one.forward - 1, one.end - 1, root.whole_bytes)
    yield from _gradients_scattered(root, one.end, ranks)
    before = root
    for unit in units:
        yield LifeChange(*unit.forward, 2 * unit.whole_bytes)  # the parameters, and the buffer they were gathered in
        # The buffer of the unit before goes only once these are copied.
        yield LifeChange(
            before.forward[0] if before is root else unit.forward[0], unit.forward[0] + 1, before.whole_bytes
        )
        before = unit
    # That of the last one stays until the forward pass is over, and it is gathered again as the backward pass begins.
    yield LifeChange(before.forward[1], max(before.forward[1], before.backward[0]), before.whole_bytes)
    for at in range(len(units) - 1, -1, -1):
        unit = units[at]
        yield LifeChange(*unit.backward, unit.whole_bytes)
        if at:
            yield LifeChange(*unit.backward, units[at - 1].whole_bytes)  # gathered ahead
        scattered = units[at - 1].backward[1] if at else one.end
        yield from _gradients_scattered(unit, scattered, ranks)


def _gradients_scattered(unit: _Unit, until: int, ranks: int) -> Iterator[LifeChange]:
    """Whole gradients end with the backward pass of their unit, are copied to a buffer that lives until the next unit's
    are, and leave this rank's part behind."""
    end = unit.backward[1]
    yield LifeChange(end, until, unit.whole_bytes)
    for gradient in unit.gradients:
        yield left_out_from(gradient.block, end)
        if gradient.block.freed is None or gradient.block.freed > end:
            yield LifeChange(end, gradient.block.freed, round(gradient.block.size_bytes / ranks))


def _units(steps: RecordedSteps, one: Pass, blocks: RepeatedBlocks, gradients: Sequence[NamedBlock]) -> Iterator[_Unit]:
    begins = [begins_again(steps, one, call) for call in blocks.calls]
    for number, call in enumerate(blocks.calls):
        kept = [block.block.freed for block in call.kept if block.block.freed is not None]
        end = begins[number - 1] if number else max(kept, default=one.end - 1)
        own = [gradient for gradient in gradients if begins[number] < gradient.block.made <= end]
        yield _Unit((call.made[0].block.made - 1, call.last), (begins[number], max(end, begins[number])), own)
