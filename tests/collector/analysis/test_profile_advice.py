"""What would help: predicted peaks of programs whose peaks are known, and what holds for every recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator_traces import RECORDINGS, Held
from profiled_programs import (
    AUTOGRAD,
    BATCH,
    FORWARD,
    GRADS,
    KIB,
    LINE,
    MIB,
    MODULE,
    OPTIMIZER,
    SITE,
    Program,
    a_step,
    steps_of_lbfgs,
)
from tidegauge.analysis.profile.advice.advise import MIN_SAVED_SHARE, advice_of
from tidegauge.analysis.profile.advice.autocast import cached_casts
from tidegauge.analysis.profile.advice.batch import growing_blocks, peak_with_batch
from tidegauge.analysis.profile.advice.curve import Curve, LifeChange, left_out
from tidegauge.analysis.profile.advice.repeats import repeated_blocks
from tidegauge.analysis.profile.advice.state import largest_part
from tidegauge.analysis.profile.advice.steps import RecordedSteps
from tidegauge.analysis.profile.profile import profile_of_recording
from tidegauge.analysis.profile.recording import NamedRecording, recording_of
from tidegauge.analysis.profile.words import measure_sentence
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.analysis.whatif.results import WhatIf
from tidegauge.analysis.whatif.search import whatif
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.trace import BlockState, Frame, KnownBlock, KnownSegment, Stack
from tidegauge.core.profile.advice import AdvisedMeasure, FittingCard, Measure
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import OwnedMemory

SNAPSHOTS = Path(__file__).parents[2] / "data" / "snapshots"
RECORDED = sorted(path.name for path in SNAPSHOTS.iterdir() if ".late." in path.name)

MADE: Stack = (Frame("_apply", MODULE.filename, 934), LINE)
LOOP: Stack = (Frame("forward", "model.py", 88), MODULE, LINE)
"""Of the line that calls the blocks one after the other, outwards."""
FIRST: Stack = (Frame("forward", "block.py", 5), MODULE, *LOOP)
SECOND: Stack = (Frame("forward", "block.py", 6), MODULE, *LOOP)
LOSS: Stack = (Frame("cross_entropy", f"{SITE}/nn/functional.py", 3504), Frame("loss_of", "train.py", 30), LINE)


def measures_of(recording: NamedRecording, ranks: int | None = None) -> dict[Measure, AdvisedMeasure]:
    return {one.measure: one for one in advice_of(recording, ranks=ranks).measures}


def curve_of(recording: NamedRecording) -> Curve:
    return Curve(len(recording.trace), (one.block for one in recording.blocks))


def a_step_of_blocks(
    program: Program, blocks: int, *, steps_optimizer: bool = True, freed_late: Sequence[Held] = ()
) -> list[Held]:
    """Each block keeps 8 MiB and its output of 2 MiB; its gradient takes 4 MiB. The gradients are alive at the end;
    ``freed_late`` are those of the step before."""
    batch = program.alloc(2 * MIB, BATCH)
    kept = [(program.alloc(8 * MIB, FIRST), program.alloc(2 * MIB, SECOND)) for _ in range(blocks)]
    program.free(*freed_late)
    seed = program.alloc(512, GRADS)
    gradients: list[Held] = []
    for inner, output in reversed(kept):
        program.free(output)
        scratch = program.alloc(1 * MIB, AUTOGRAD)
        gradients.append(program.alloc(4 * MIB, AUTOGRAD))
        program.free(inner, scratch)
    program.free(seed)
    if steps_optimizer:
        program.free(program.alloc(4 * MIB, OPTIMIZER))
    program.free(batch)
    return gradients


def test_checkpointed_blocks_keep_their_outputs_and_one_block_at_a_time() -> None:
    program = Program()
    for _ in range(2):
        program.free(*a_step_of_blocks(program, 6))
    recording = program.recording()
    assert profile_of_recording(recording).peak.allocated_bytes == (2 + 6 * 10 - 2 + 1 + 4) * MIB + 512
    advised = measures_of(recording)[Measure.CHECKPOINTING]
    # In the backward pass of the first block: its own 8 MiB, five gradients of 4 and its own, scratch, batch and seed.
    assert advised.peak_bytes == (2 + 8 + 6 * 4 + 1) * MIB + 512
    assert advised.action == "Checkpoint the 6 blocks (model.py:88)"


def test_what_a_block_frees_by_itself_is_there_again_while_it_is_computed_again() -> None:
    program = Program()
    for _ in range(2):
        batch = program.alloc(2 * MIB, BATCH)
        kept = []
        for _ in range(4):
            scratch = program.alloc(16 * MIB, FIRST)
            kept += [program.alloc(8 * MIB, FIRST)]
            program.free(scratch)
            kept += [program.alloc(2 * MIB, SECOND)]
        seed = program.alloc(512, GRADS)
        program.free(*reversed(kept), seed, batch)
    advised = measures_of(program.recording())[Measure.CHECKPOINTING]
    # In the backward pass of the last block all but the last output are there, and the block with its scratch.
    assert advised.peak_bytes == (2 + 3 * 2 + 8 + 16) * MIB + 512


def test_checkpointing_leaves_the_copies_that_autocast_keeps_of_weights_until_its_region_ends() -> None:
    """An activation of their size is none of them, and is computed again."""
    program = Program()
    for _ in range(3):
        program.alloc(8 * MIB, MADE)
    for _ in range(2):
        batch = program.alloc(2 * MIB, BATCH)
        kept = [
            [program.alloc(4 * MIB, FIRST), program.alloc(4 * MIB, FIRST), program.alloc(2 * MIB, SECOND)]
            for _ in range(3)
        ]
        loss = program.alloc(32 * MIB, LOSS)
        seed = program.alloc(512, GRADS)
        program.free(loss)
        gradients = []
        for copy, activation, output in reversed(kept):
            program.free(output)
            half = program.alloc(4 * MIB, AUTOGRAD)
            program.free(copy, activation)
            gradients.append(program.alloc(8 * MIB, AUTOGRAD))
            program.free(half)
        program.free(program.alloc(1 * MIB, OPTIMIZER), *gradients, seed, batch)
    recording = program.recording()
    steps = RecordedSteps(recording)
    copies = [cached_casts(steps, one) for one in steps.passes]
    assert [len(made) for made in copies] == [3, 3]
    advised = measures_of(recording)[Measure.CHECKPOINTING]
    # When the loss is there: parameters, batch, and of each block its copy and its output.
    assert advised.peak_bytes == (3 * 8 + 2 + 3 * (4 + 2) + 32) * MIB
    assert Measure.HALF_ACTIVATIONS not in measures_of(recording)
    assert not copies[0].union(copies[1]).intersection(one.made for one in growing_blocks(steps))


def test_a_block_is_not_computed_again_before_the_operation_behind_it_is_done() -> None:
    """A head makes the gradient of its weight first, then that of its input, and lets go of the logits' then."""
    program = Program()
    for _ in range(2):
        batch = program.alloc(2 * MIB, BATCH)
        kept = [(program.alloc(8 * MIB, FIRST), program.alloc(2 * MIB, SECOND)) for _ in range(4)]
        seed, logits = program.alloc(512, GRADS), program.alloc(32 * MIB, AUTOGRAD)
        gradient, incoming = program.alloc(4 * MIB, AUTOGRAD), program.alloc(2 * MIB, AUTOGRAD)
        program.free(logits)
        for inner, output in reversed(kept):
            program.free(output)
            outgoing = program.alloc(2 * MIB, AUTOGRAD)
            program.free(inner, incoming)
            incoming = outgoing
        program.free(program.alloc(1 * MIB, OPTIMIZER), gradient, incoming, seed, batch)
    advised = measures_of(program.recording())[Measure.CHECKPOINTING]
    assert advised.peak_bytes == (2 + 4 * 2 + 32 + 4 + 2) * MIB + 512


def test_blocks_of_two_kinds_are_checkpointed_together() -> None:
    """Those of an encoder and of a decoder."""
    program = Program()
    loops = [(Frame("forward", "model.py", line), MODULE, LINE) for line in (88, 95)]
    lines = [(Frame("forward", f"block_{loop[0].line}.py", 5), MODULE, *loop) for loop in loops]
    for _ in range(2):
        batch = program.alloc(2 * MIB, BATCH)
        kept = []
        for line in (line for line in lines for _ in range(4)):
            kept += [program.alloc(8 * MIB, line), program.alloc(2 * MIB, (Frame("forward", "end.py", 1), *line))]
        seed = program.alloc(512, GRADS)
        program.free(*reversed(kept), seed, batch)
    advised = measures_of(program.recording())[Measure.CHECKPOINTING]
    # When the last block makes its output: that of the others, and what it makes it of.
    assert advised.peak_bytes == (2 + 8 * 2 + 8) * MIB
    assert advised.action == "Checkpoint the 4 blocks (model.py:88) and the 4 blocks (model.py:95)"


def test_blocks_that_are_not_repeated_are_not_advised() -> None:
    program = Program()
    a_step(program)
    assert Measure.CHECKPOINTING not in measures_of(program.recording())


def evaluating_step(program: Program) -> None:
    """Trains 8 MiB a step, then evaluates three batches of 4 MiB, of which the outputs, 16 MiB each, are collected."""
    inner: Stack = (Frame("evaluate", "eval.py", 3), *FORWARD)
    batch = program.alloc(1 * MIB, BATCH)
    first = program.alloc(1 * MIB, FORWARD)
    kept = program.alloc(8 * MIB, FORWARD)
    program.free(first)
    program.free(program.alloc(512, GRADS), kept)
    outputs = []
    for _ in range(3):
        data = program.alloc(4 * MIB, (Frame("evaluate", "eval.py", 2), LINE))
        scratch = program.alloc(32 * MIB, inner)
        outputs.append(program.alloc(16 * MIB, (Frame("evaluate", "eval.py", 4), *FORWARD)))
        program.free(scratch, data)
    program.free(*outputs, program.alloc(1 * MIB, OPTIMIZER), batch)


def test_an_evaluation_has_a_batch_of_its_own_that_can_be_halved() -> None:
    program = Program()
    for _ in range(2):
        evaluating_step(program)
    recording = program.recording()
    assert profile_of_recording(recording).peak.allocated_bytes == (1 + 4 + 32 + 3 * 16) * MIB
    found = measures_of(recording)
    assert Measure.ACCUMULATION not in found
    # Two outputs, the first half of the third, and half of all the rest.
    assert found[Measure.SMALLER_EVALUATION].peak_bytes == (1 + (4 + 32) // 2 + 3 * 16) * MIB
    steps = RecordedSteps(recording)
    assert peak_with_batch(steps, curve_of(recording), 2.0) == (2 * 1 + 4 + 32 + 3 * 16) * MIB


def test_the_second_half_of_a_batch_does_not_meet_gradients_of_the_step_before() -> None:
    """``zero_grad()`` comes before the backward pass: of the first half, whose gradients the second one adds to."""
    program = Program()
    gradients: list[Held] = []
    for _ in range(3):
        batch, kept = program.alloc(2 * MIB, BATCH), program.alloc(40 * MIB, FORWARD)
        program.free(program.alloc(8 * MIB, FORWARD), *gradients)
        seed = program.alloc(512, GRADS)
        gradients = [program.alloc(16 * MIB, AUTOGRAD)]
        program.free(program.alloc(2 * MIB, AUTOGRAD), kept, seed)
        program.free(batch, program.alloc(4 * MIB, OPTIMIZER))
    recording = program.recording()
    assert profile_of_recording(recording).peak.allocated_bytes == (2 + 40 + 8 + 16) * MIB
    # The first half's gradient, the second half's beside it.
    assert measures_of(recording)[Measure.ACCUMULATION].peak_bytes == (1 + 20 + 2 * 16) * MIB + 256


def test_the_gradient_of_a_weight_is_added_once_that_of_its_bias_is_there_too() -> None:
    program = Program()
    for _ in range(2):
        batch, kept = program.alloc(2 * MIB, BATCH), program.alloc(40 * MIB, FORWARD)
        seed = program.alloc(512, GRADS)
        gradients = [program.alloc(16 * MIB, AUTOGRAD), program.alloc(1 * MIB, AUTOGRAD)]
        program.free(program.alloc(32 * MIB, AUTOGRAD))
        program.free(kept)
        program.free(program.alloc(4 * MIB, AUTOGRAD), seed)
        program.free(batch, program.alloc(4 * MIB, OPTIMIZER), *gradients)
    advised = measures_of(program.recording())[Measure.ACCUMULATION]
    assert advised.peak_bytes == (1 + 20 + 2 * 17 + 16) * MIB + 256


def test_the_gradient_of_a_tied_parameter_is_added_once_its_last_part_is_there_too() -> None:
    """Of an embedding that is the head as well: its first part waits through the whole backward pass."""
    program = Program()
    program.alloc(16 * MIB, MADE)
    for _ in range(2):
        batch, kept = program.alloc(2 * MIB, BATCH), program.alloc(40 * MIB, FORWARD)
        seed = program.alloc(512, GRADS)
        first = program.alloc(16 * MIB, AUTOGRAD)
        program.free(program.alloc(2 * MIB, AUTOGRAD))
        program.free(program.alloc(24 * MIB, AUTOGRAD), kept)
        program.free(program.alloc(16 * MIB, AUTOGRAD), seed)
        program.free(batch, program.alloc(4 * MIB, OPTIMIZER), first)
    advised = measures_of(program.recording())[Measure.ACCUMULATION]
    # Half the batch with what is kept of it and scratch memory, the weight, and its gradient with the first part.
    assert advised.peak_bytes == (1 + 20 + 12 + 16 + 2 * 16) * MIB + 256


def test_a_forward_pass_that_the_backward_pass_goes_with_is_no_evaluation() -> None:
    program = Program()
    a_step(program)
    a_step_of_blocks(program, 3)
    assert not RecordedSteps(program.recording()).evaluations


@pytest.mark.parametrize("steps_optimizer", [True, False], ids=["adam", "sgd"])
def test_gradients_freed_after_the_step_are_not_there_in_the_next_forward_pass(steps_optimizer: bool) -> None:
    program = Program()
    gradients: list[Held] = []
    for _ in range(3):
        gradients = a_step_of_blocks(program, 2, freed_late=gradients, steps_optimizer=steps_optimizer)
    recording = program.recording()
    advised = measures_of(recording)[Measure.ZERO_GRAD_EARLIER]
    # The peak is then in the backward pass: one of two outputs is freed, scratch and the first gradient are there.
    assert advised.peak_bytes == (2 + 2 * 10 - 2 + 1 + 4) * MIB + 512
    assert advised.price == "it costs nothing"


def test_a_recording_of_one_step_shows_what_the_gradients_of_the_step_before_cost() -> None:
    program, address, size_bytes = Program(), 1 << 30, 4 * MIB
    before = [Held(address + number * size_bytes, size_bytes, 0, 0) for number in range(2)]
    a_step_of_blocks(program, 2, freed_late=before)
    blocks = tuple(KnownBlock(one.address, size_bytes, size_bytes, BlockState.ACTIVE_ALLOCATED, None) for one in before)
    start = KnownSegment(address, 2 * size_bytes, 0, True, False, (0, 0), blocks)
    known = [OwnedMemory(one.address, Category.GRADIENTS) for one in before]
    recording = recording_of(program.trace(start), owned_before=known)
    assert recording.backward_passes == 1
    advised = measures_of(recording)[Measure.ZERO_GRAD_EARLIER]
    assert advised.peak_bytes == (2 + 2 * 10 - 2 + 1 + 4) * MIB + 512
    assert advised.saved_bytes == profile_of_recording(recording).peak.allocated_bytes - advised.peak_bytes > 0


def test_an_optimizer_in_the_backward_pass_has_one_gradient_at_a_time() -> None:
    program = Program()
    for _ in range(2):
        program.free(*a_step_of_blocks(program, 1), *a_step_of_blocks(program, 1))
    assert Measure.OPTIMIZER_IN_BACKWARD in measures_of(program.recording())
    accumulating = Program()
    for _ in range(2):
        first = a_step_of_blocks(accumulating, 8, steps_optimizer=False)
        accumulating.free(*first, *a_step_of_blocks(accumulating, 8))
    assert Measure.OPTIMIZER_IN_BACKWARD not in measures_of(accumulating.recording())
    assert Measure.OPTIMIZER_IN_BACKWARD not in measures_of(steps_of_lbfgs().recording())


def test_half_of_the_optimizer_state_is_gone_where_two_ranks_share_it() -> None:
    program = Program()
    program.alloc(16 * MIB, MADE), program.alloc(16 * MIB, MADE)
    program.alloc(24 * MIB, OPTIMIZER), program.alloc(24 * MIB, OPTIMIZER)
    program.free(program.alloc(1 * MIB, BATCH))
    recording = program.recording()
    assert measures_of(recording, ranks=2)[Measure.SHARDED_STATE].saved_bytes == 24 * MIB
    assert Measure.SHARDED_STATE not in measures_of(recording)


def test_sharded_blocks_are_whole_only_while_they_are_at_work() -> None:
    program = Program()
    for _ in range(6):
        program.alloc(4 * MIB, MADE)
    for _ in range(2):
        program.free(*a_step_of_blocks(program, 6))
    advised = measures_of(program.recording(), ranks=4)[Measure.FULLY_SHARDED]
    # At the beginning of the backward pass: a quarter of the parameters, the last block whole, the next one gathered,
    # its first gradient; activations as today.
    assert advised.peak_bytes == (6 + 2 * 4 + 2 + 6 * 10 - 2 + 1 + 4) * MIB + 512
    assert "fully_shard on the 6 blocks (model.py:88)" in advised.action


def test_what_is_not_trained_is_not_sharded() -> None:
    program = Program()
    for _ in range(6):
        program.alloc(4 * MIB, MADE)
    for _ in range(2):
        program.free(program.alloc(8 * MIB, (Frame("forward", "model.py", 88), MODULE, LINE)))
    assert Measure.FULLY_SHARDED not in measures_of(program.recording(), ranks=2)


def calls_of(*blocks: str) -> list[int]:
    """The sizes of the calls that are found of blocks with these allocations, one letter each: its line."""
    program = Program()
    site = Frame("forward", "model.py", 1), MODULE, LINE
    batch = program.alloc(1 * MIB, BATCH)
    kept = [program.alloc(MIB, (Frame("forward", "block.py", ord(line)), MODULE, *site)) for line in "".join(blocks)]
    program.free(program.alloc(512, GRADS), *kept, batch)
    recording = program.recording()
    steps = RecordedSteps(recording)
    kind = next(repeated_blocks(steps.made_forward(steps.passes[0]), recording.trace.stacks), None)
    return [] if kind is None else [len(call.made) for call in kind.calls]


@pytest.mark.parametrize(
    ("blocks", "sizes"),
    [
        (("abc", "abc", "abc"), [3, 3, 3]),
        (("aba", "aba", "aba"), [3, 3, 3]),
        (("abcde", "abcd", "abcd", "abcde", "abcd"), [5, 4, 4, 5, 4]),
        (("abc", "abc", "ab"), [3, 3, 2]),
        (("abbc", "aabc", "abc", "aabbc"), [4, 4, 3, 5]),  # convolutions: cuDNN takes scratch memory for some sizes
        (("aabcxyd", "aabcd", "aabcd"), [7, 5, 5]),  # T5: the first block computes what the others are given
        (("abcdef", "abxdef", "abcdef", "abxdef", "abxdef"), [6, 6, 6, 6, 6]),  # attention of windows in some blocks
        (("abbbcd", "abcd", "abbcd"), [6, 4, 5]),  # as many experts as tokens were sent to
        (("abcdaefg",), []),
        (("abcd",), []),
    ],
)
def test_blocks_are_told_apart_by_the_stacks_that_repeat(blocks: tuple[str, ...], sizes: list[int]) -> None:
    assert calls_of(*blocks) == sizes


@pytest.mark.parametrize(
    ("sizes", "ranks", "part"),
    [([4, 4], 2, 0.5), ([8, 1, 1], 2, 0.8), ([5, 4, 3], 2, 7 / 12), ([4], 8, 1.0), ([], 4, 0.25)],
)
def test_whole_parameters_are_dealt_out_the_largest_first(sizes: list[int], ranks: int, part: float) -> None:
    assert largest_part(sizes, ranks) == pytest.approx(part)


def test_a_loss_in_chunks_has_an_eighth_of_the_logits() -> None:
    program = Program()
    for _ in range(2):
        batch = program.alloc(1 * MIB, BATCH)
        logits, log_softmax = program.alloc(64 * MIB, FIRST), program.alloc(64 * MIB, LOSS)
        seed, grad = program.alloc(512, GRADS), program.alloc(64 * MIB, AUTOGRAD)
        program.free(log_softmax, logits, grad, seed, batch)
    advised = measures_of(program.recording())[Measure.CHUNKED_LOSS]
    assert advised.peak_bytes == (1 + 3 * 64 // 8) * MIB + 512
    assert "train.py:30" in advised.action


OPERATIONS: tuple[Stack, ...] = tuple(
    (Frame("forward", f"{SITE}/nn/modules/{name}.py", 5), MODULE, *FIRST) for name in ("linear", "activation")
)
"""Two kinds of layers, called by a block."""
CACHE: Stack = (Frame("update", "/opt/site-packages/transformers/cache_utils.py", 125), *FIRST)


def a_forward_pass(program: Program, *, keeps: bool) -> None:
    """Eight outputs of 4 MiB, one after the other; ``keeps``: all until the end, as autograd does."""
    batch = program.alloc(1 * MIB, BATCH)
    kept = [program.alloc(4 * MIB, OPERATIONS[0])]
    for layer in range(1, 8):
        kept.append(program.alloc(4 * MIB, OPERATIONS[layer % 2]))
        if not keeps:
            program.free(kept.pop(0))
    program.free(*kept, batch)


def test_inference_that_keeps_activations_is_advised_not_to() -> None:
    program = Program()
    program.alloc(16 * MIB, MADE)
    for _ in range(2):
        a_forward_pass(program, keeps=True)
    advised = measures_of(program.recording())[Measure.INFERENCE_MODE]
    assert advised.peak_bytes + advised.saved_bytes == (16 + 1 + 8 * 4) * MIB
    assert advised.peak_bytes == (16 + 1 + 2 * 4) * MIB  # a layer's input and its output
    assert advised.is_bound


def test_inference_that_keeps_nothing_has_smaller_weights_and_batches_left() -> None:
    program = Program()
    program.alloc(16 * MIB, MADE)
    for _ in range(2):
        a_forward_pass(program, keeps=False)
    assert {name: one.saved_bytes for name, one in measures_of(program.recording()).items()} == {
        Measure.SMALLER_WEIGHTS: 8 * MIB,
        Measure.HALF_BATCH: 4 * MIB + 512 * KIB,
    }


def test_the_cache_of_keys_and_values_is_told_by_its_file() -> None:
    program = Program()
    for _ in range(2):
        program.free(*[program.alloc(4 * MIB, CACHE) for _ in range(8)])
    found = measures_of(program.recording())
    assert found[Measure.SMALLER_CACHE].saved_bytes == 16 * MIB
    assert Measure.INFERENCE_MODE not in found


def test_a_training_step_has_no_advice_on_inference() -> None:
    program = Program()
    program.alloc(16 * MIB, MADE)
    for _ in range(2):
        program.free(*a_step_of_blocks(program, 6))
    inference = {Measure.INFERENCE_MODE, Measure.SMALLER_CACHE, Measure.SMALLER_WEIGHTS, Measure.HALF_BATCH}
    assert not inference & set(measures_of(program.recording()))


def test_settings_are_advised_where_far_more_is_reserved_than_allocated() -> None:
    advice = advice_of(recording_of(open_trace(RECORDINGS / "fragmentation_growth_s1_c0.npz")))
    (advised,) = advice.measures
    assert (advised.measure, advised.is_reserved) == (Measure.ALLOCATOR_SETTINGS, True)
    assert advised.peak_bytes + advised.saved_bytes == advice.reserved_bytes
    assert advised.saved_bytes > 0.5 * advice.reserved_bytes
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in measure_sentence(advised)


def whatif_without_curves(recording: NamedRecording, *, again: bool) -> WhatIf:
    """Without the curve of the recording's own replay, which is as fine as the recording where it is not done again."""
    with patch("tidegauge.analysis.traces.replays.run_replay", wraps=replay) as replays:
        found = whatif(recording.trace, recorded=None if again else recording.replayed)
    assert replays.call_count == int(again)
    bare = replace(found.today, replay=found.recorded._replace(curve=None))
    trials = tuple(bare if one is found.today else one for one in found.trials)
    best = bare if found.recommended is found.today else found.recommended
    return replace(found, trials=trials, today=bare, recommended=best, recorded=bare.replay)


@pytest.mark.parametrize("name", ["cuda_graph.late.snap.zst", "steady_lm.late.snap.zst"])
def test_settings_are_advised_where_the_replay_says_that_they_help(name: str) -> None:
    advice = advice_of(recorded(name))
    found = whatif(open_trace(SNAPSHOTS / name))
    peak_bytes = found.recommended.replay.peak_reserved_bytes
    saved_bytes = found.today.replay.peak_reserved_bytes - peak_bytes
    assert whatif_without_curves(recorded(name), again=False) == whatif_without_curves(recorded(name), again=True)
    advised = [(one.peak_bytes, one.saved_bytes) for one in advice.measures if one.is_reserved]
    assert advised == ([(peak_bytes, saved_bytes)] if saved_bytes >= MIN_SAVED_SHARE * advice.reserved_bytes else [])
    assert bool(advised) is (name == "cuda_graph.late.snap.zst")


def test_the_border_of_the_batch_is_where_the_memory_is_full() -> None:
    program = Program()
    program.alloc(16 * MIB, MADE)
    for _ in range(2):
        program.free(*a_step_of_blocks(program, 4))
    recording = program.recording()
    room = advice_of(recording, limit_bytes=200 * MIB).room
    assert room is not None
    steps, curve = RecordedSteps(recording), curve_of(recording)
    assert peak_with_batch(steps, curve, room.border_times) == pytest.approx(200 * MIB, rel=1e-3)
    assert 1 < room.safe_times <= room.border_times
    assert peak_with_batch(steps, curve, 1.0) == curve.peak_bytes()


def test_the_smallest_card_that_holds_what_is_reserved_comes_first() -> None:
    program = Program()
    program.alloc(100 * MIB, BATCH)
    cards = [FittingCard("large", 1 << 40), FittingCard("tight", 100 * MIB), FittingCard("small", 50 * MIB)]
    advice = advice_of(program.recording(), cards=cards)
    assert [card.name for card in advice.cards] == ["tight", "large"]


@given(st.lists(st.tuples(st.integers(-1, 9), st.one_of(st.none(), st.integers(0, 9)), st.integers(-5, 5)), max_size=9))
def test_a_curve_is_the_sum_of_its_changes_at_each_event(rows: list[tuple[int, int | None, int]]) -> None:
    changes = [LifeChange(*row) for row in rows]
    found = Curve(10, ()).bytes_after(changes)
    for event in range(-1, 10):
        there = [c.more_bytes for c in changes if c.begin <= event and (c.end is None or event < c.end)]
        assert found[event + 1] == sum(there)


@cache
def recorded(name: str) -> NamedRecording:
    return recording_of(open_trace(SNAPSHOTS / name))


@pytest.mark.parametrize("name", RECORDED)
def test_every_measure_says_two_peaks_that_differ(name: str) -> None:
    for one in advice_of(recorded(name), ranks=4).measures:
        said = re.search(r" falls from (\S+ \w+) to (\S+ \w+)", measure_sentence(one))
        assert said is not None
        assert said[1] != said[2]


@pytest.mark.parametrize("name", RECORDED)
def test_no_measure_raises_the_peak_of_a_recording(name: str) -> None:
    advice = advice_of(recorded(name), ranks=4, limit_bytes=80 << 30)
    assert advice.peak_bytes == profile_of_recording(recorded(name)).peak.allocated_bytes
    saved = [one.saved_bytes for one in advice.measures]
    assert saved == sorted(saved, reverse=True)
    for one in advice.measures:
        whole = advice.reserved_bytes if one.is_reserved else advice.peak_bytes
        assert one.peak_bytes + one.saved_bytes == whole
        assert one.peak_bytes >= 0
        assert one.saved_bytes >= MIN_SAVED_SHARE * advice.peak_bytes


@pytest.mark.parametrize("name", RECORDED)
def test_removing_nothing_changes_nothing_and_removing_all_leaves_nothing(name: str) -> None:
    curve, blocks = curve_of(recorded(name)), [one.block for one in recorded(name).blocks]
    assert curve.peak_bytes(left_out(block, 0.0) for block in blocks) == curve.peak_bytes()
    assert curve.peak_bytes(map(left_out, blocks)) == 0
    assert curve.peak_bytes(left_out(block, 0.5) for block in blocks) == pytest.approx(curve.peak_bytes() / 2, rel=1e-4)


SIZES = st.integers(1, 64).map(lambda count: count * MIB)
STACKS = st.sampled_from((AUTOGRAD, BATCH, FIRST, SECOND, GRADS, LOSS, MADE, OPTIMIZER))


@given(st.lists(st.tuples(SIZES, STACKS, st.booleans(), st.integers(0, 9)), min_size=1, max_size=60))
def test_no_measure_raises_the_peak_whatever_a_program_does(rows: list[tuple[int, Stack, bool, int]]) -> None:
    program = Program()
    held: list[Held] = []
    for size, stack, frees, which in rows:
        held.append(program.alloc(size, stack))
        if frees:
            program.free(held.pop(which % len(held)))
    recording = program.recording()
    advice = advice_of(recording, ranks=2, limit_bytes=1 << 30)
    assert advice.peak_bytes == profile_of_recording(recording).peak.allocated_bytes
    for one in advice.measures:
        assert 0 <= one.peak_bytes < advice.peak_bytes or one.is_reserved
