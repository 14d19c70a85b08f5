"""Memory profiles of recorded steps: every byte has a category, at every event."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator_traces import Held, Requests
from profiled_programs import (
    AGAIN,
    AUTOGRAD,
    BATCH,
    CLOSURE,
    DECORATED,
    FORWARD,
    GRADS,
    KIB,
    LINE,
    LOSS,
    MIB,
    MODULE,
    OPTIMIZER,
    SITE,
    Program,
    a_step,
    steps_of_lbfgs,
)  # fmt: skip
from rank_profiles import steady_profile
from tidegauge.analysis.profile.lives import BEFORE, lives_of
from tidegauge.analysis.profile.phases import phase_of_stack, stretches_of
from tidegauge.analysis.profile.profile import profile_of, profile_of_recording
from tidegauge.analysis.profile.purposes import Purposes
from tidegauge.analysis.profile.recording import recording_of
from tidegauge.analysis.profile.words import doubts, name_of_line, peak_sentence, phase_of_line
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.trace import BlockState, Frame, Stack
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.step_profile import MAX_TIMELINE_POINTS, OwnedMemory

SNAPSHOTS = Path(__file__).parents[2] / "data" / "snapshots"
RECORDED = sorted(path.name for path in SNAPSHOTS.iterdir() if ".late." in path.name)

FUNC = Frame("grad_and_value_impl", f"{SITE}/_functorch/eager_transforms.py", 1390)


FSDP2 = f"{SITE}/distributed/fsdp/_fully_shard"
GATHER = Frame("foreach_all_gather", f"{FSDP2}/_fsdp_collectives.py", 250)
SCATTER = Frame("foreach_reduce", f"{FSDP2}/_fsdp_collectives.py", 500)


@pytest.mark.parametrize(
    ("stack", "phase"),
    [
        (BATCH, None),
        (LOSS, None),
        (FORWARD, StepPhase.FORWARD),
        (GRADS, StepPhase.BACKWARD),
        (AUTOGRAD, StepPhase.BACKWARD),
        (OPTIMIZER, StepPhase.OPTIMIZER),
        ((*FORWARD, *CLOSURE), StepPhase.FORWARD),
        ((*LOSS, *CLOSURE), None),
        ((*FORWARD, CLOSURE[0], DECORATED, *CLOSURE[1:]), StepPhase.FORWARD),
        ((*LOSS, CLOSURE[0], DECORATED, *CLOSURE[1:]), None),
        ((OPTIMIZER[0], DECORATED, *CLOSURE[-1:]), StepPhase.OPTIMIZER),
        ((*GRADS, *CLOSURE), StepPhase.BACKWARD),
        ((Frame("step", "train/lion.py", 30), *CLOSURE[-1:]), StepPhase.OPTIMIZER),
        (AGAIN, StepPhase.RECOMPUTATION),
        ((Frame("c10::alloc", "??", 0), Frame("torch::autograd::Engine::thread_main", "??", 0)), StepPhase.BACKWARD),
        ((Frame("c10::alloc", "??", 0), Frame("main", "??", 0)), None),
        ((Frame("backward", "ops.py", 3), Frame("apply", f"{SITE}/autograd/function.py", 300)), StepPhase.BACKWARD),
        ((Frame("forward", "ops.py", 3), Frame("apply", f"{SITE}/autograd/function.py", 575), LINE), None),
        ((GATHER, Frame("wrapper", f"{FSDP2}/_fsdp_common.py", 400)), StepPhase.BACKWARD),
        ((SCATTER, Frame("decorate_context", f"{SITE}/utils/_contextlib.py", 120)), StepPhase.BACKWARD),
        (
            (Frame("forward", "model.py", 5), MODULE, Frame("<module>", "/home/ada/torch/train.py", 9)),
            StepPhase.FORWARD,
        ),
        ((GATHER, LINE), None),
    ],
)
def test_stacks_tell_the_phase(stack: Stack, phase: StepPhase | None) -> None:
    assert phase_of_stack(stack) is phase


def test_each_block_at_the_peak_has_its_category() -> None:
    program = Program()
    a_step(program)
    profile = program.profile()
    assert profile.peak.phase is StepPhase.BACKWARD
    assert profile.peak.by_category == {
        Category.INPUTS: 1 * MIB,
        Category.ACTIVATIONS: 22 * MIB,
        Category.GRADIENTS: 3 * MIB,
        Category.TEMPORARIES: 40 * MIB + 512,
    }
    assert profile.peak.allocated_bytes == 66 * MIB + 512
    assert [(one.held_bytes, one.category, one.phase) for one in profile.lines[:3]] == [
        (40 * MIB, Category.TEMPORARIES, StepPhase.BACKWARD),
        (20 * MIB, Category.ACTIVATIONS, StepPhase.FORWARD),
        (3 * MIB, Category.GRADIENTS, StepPhase.BACKWARD),
    ]


def test_without_modules_what_comes_before_the_call_of_backward_is_the_forward_pass() -> None:
    """Of functions, and of an optimizer that allocates nothing."""
    program = Program()
    for _ in range(2):
        kept = [program.alloc(16 * MIB, BATCH), program.alloc(16 * MIB, LOSS)]
        program.free(program.alloc(8 * MIB, LOSS))
        seed = program.alloc(512, GRADS)
        program.free(program.alloc(4 * MIB, AUTOGRAD), *kept, seed)
    profile = program.profile()
    assert profile.backward_passes == 2
    assert {one.phase for one in profile.phases} >= {StepPhase.FORWARD, StepPhase.BACKWARD}
    assert profile.peak.phase is StepPhase.FORWARD
    assert profile.peak.by_category == {Category.ACTIVATIONS: 32 * MIB, Category.TEMPORARIES: 8 * MIB}


def test_without_modules_an_optimizers_scratch_stays_its_own() -> None:
    program = Program()
    for _ in range(2):
        kept = program.alloc(16 * MIB, LOSS)
        seed = program.alloc(512, GRADS)
        program.free(program.alloc(4 * MIB, AUTOGRAD), kept, seed)
        program.free(program.alloc(1 * MIB, BATCH))
        program.free(program.alloc(2 * MIB, OPTIMIZER))
    phases = [one.phase for one in program.recording().stretches]
    step = [StepPhase.FORWARD, StepPhase.BACKWARD, StepPhase.BEFORE_OPTIMIZER, StepPhase.OPTIMIZER]
    assert phases == 2 * step


def test_what_is_made_before_any_phase_shows_is_other_and_not_from_before_the_recording() -> None:
    program = Program()
    program.alloc(64 * MIB, BATCH)
    assert program.profile().peak.by_category == {Category.OTHER: 64 * MIB}


def test_memory_without_a_stack_has_the_name_that_the_program_gives_it() -> None:
    program = Program()
    average = [program.alloc(size * MIB, AUTOGRAD) for size in (8, 4)]
    cache = program.alloc(2 * MIB, AUTOGRAD)
    program.alloc(1 * MIB, AUTOGRAD)
    names = ("Ema.shadow['head.weight']", "Ema.shadow['head.bias']", "cache")
    owned = [OwnedMemory(one.address, Category.OTHER, name=name) for one, name in zip([*average, cache], names)]
    told = [(name_of_line(one), one.held_bytes, one.blocks) for one in program.profile(*owned).lines]
    assert told == [("Ema.shadow", 12 * MIB, 2), ("cache", 2 * MIB, 1), ("no stack recorded", 1 * MIB, 1)]


def test_the_state_that_an_optimizer_makes_is_told_from_its_temporaries() -> None:
    program = Program()
    program.free(*a_step(program)[:2])
    a_step(program)
    profile = program.profile()
    assert profile.backward_passes == 2
    assert profile.peak.by_category[Category.OPTIMIZER_STATE] == 6 * MIB
    peaks = {one.phase: one.peak_bytes for one in profile.phases}
    assert peaks[StepPhase.OPTIMIZER] == (6 + 1 + 2 + 3 + 6 + 3) * MIB


def test_what_an_optimizer_makes_and_frees_around_its_own_calls_of_a_closure_is_temporaries() -> None:
    held = dict(steps_of_lbfgs().profile().peak.by_category)
    del held[Category.ROUNDING]
    assert held == {
        Category.ACTIVATIONS: 20 * MIB,
        Category.GRADIENTS: 3 * MIB,
        Category.TEMPORARIES: 16 * MIB,
        Category.OPTIMIZER_STATE: 4 * MIB,  # the direction of the step before
    }


def test_state_that_an_optimizer_makes_behind_its_closure_is_state_in_the_next_step() -> None:
    program = Program()
    state: list[Held] = []
    for _ in range(3):
        activation = program.alloc(20 * MIB, (*FORWARD, *CLOSURE))
        program.free(program.alloc(3 * MIB, AUTOGRAD), activation)
        program.free(*state)
        state = [program.alloc(6 * MIB, OPTIMIZER)]
    held = program.profile().peak.by_category
    assert held[Category.OPTIMIZER_STATE] == 6 * MIB


@pytest.mark.parametrize(("threads", "state_bytes"), [(1, 9 * MIB), (2, 6 * MIB)])
def test_where_two_threads_train_what_an_optimizer_has_freed_is_no_state_beside_the_state_that_is_known(
    threads: int, state_bytes: int
) -> None:
    program = Program()
    state, scratch = program.alloc(6 * MIB, OPTIMIZER), program.alloc(3 * MIB, OPTIMIZER)
    of_another = program.alloc(20 * MIB, FORWARD)
    program.free(scratch, of_another)
    owned = [OwnedMemory(state.address, Category.OPTIMIZER_STATE)]
    recording = recording_of(program.trace(), owned=owned, stepping_threads=threads)
    assert profile_of_recording(recording).peak.by_category[Category.OPTIMIZER_STATE] == state_bytes


def test_gradients_that_zero_grad_frees_behind_an_optimizer_that_allocates_nothing_are_gradients() -> None:
    program = Program()
    program.alloc(3 * MIB, (Frame("_apply", MODULE.filename, 934), LINE))
    for _ in range(2):
        batch = program.alloc(1 * MIB, BATCH)
        activation = program.alloc(20 * MIB, FORWARD)
        seed = program.alloc(512, GRADS)
        gradient, rest = program.alloc(3 * MIB, AUTOGRAD), program.alloc(8 * MIB, AUTOGRAD)
        program.free(rest, seed, activation, gradient, batch)  # SGD without momentum works in place
    profile = program.profile()
    assert profile.peak.by_category[Category.GRADIENTS] == 3 * MIB
    assert profile.peak.by_category[Category.TEMPORARIES] == 8 * MIB + 512
    assert profile.peak.by_category[Category.INPUTS] == 1 * MIB
    assert StepPhase.BEFORE_OPTIMIZER not in [one.phase for one in profile.phases]


def test_parts_that_make_up_the_gradient_of_a_tied_parameter_are_temporaries() -> None:
    """Of an embedding that is the head as well. Their sum is the last allocation of the backward pass, which frees them
    then; ``zero_grad`` frees the sum."""
    program = Program()
    program.alloc(3 * MIB, (Frame("_apply", MODULE.filename, 934), LINE))
    for _ in range(2):
        batch, seed = program.alloc(1 * MIB, BATCH), program.alloc(512, GRADS)
        parts = program.alloc(3 * MIB, AUTOGRAD), program.alloc(3 * MIB, AUTOGRAD)
        gradient = program.alloc(3 * MIB, AUTOGRAD)
        program.free(*parts, seed, gradient, batch)
    held = program.profile().peak.by_category
    assert held[Category.GRADIENTS] == 3 * MIB
    assert held[Category.TEMPORARIES] == 6 * MIB + 512


@pytest.mark.parametrize(("caller", "category"), [(FUNC, Category.ACTIVATIONS), (LINE, Category.GRADIENTS)])
def test_what_torch_func_keeps_of_its_backward_pass_is_no_gradient(caller: Frame, category: Category) -> None:
    program = Program()
    program.alloc(3 * MIB, (Frame("_apply", MODULE.filename, 934), LINE))
    program.alloc(20 * MIB, (Frame("forward", "model.py", 5), MODULE, caller, LINE))
    program.alloc(8 * MIB, AUTOGRAD)
    program.alloc(3 * MIB, AUTOGRAD)
    program.alloc(1 * MIB, BATCH)
    held = program.profile().peak.by_category
    assert held[Category.GRADIENTS] == (3 * MIB if category is Category.ACTIVATIONS else 11 * MIB)
    assert held[Category.ACTIVATIONS] == (28 * MIB if category is Category.ACTIVATIONS else 20 * MIB)


def test_torch_func_with_parameters_of_unknown_sizes_is_told_as_any_backward_pass() -> None:
    program = Program()
    program.alloc(20 * MIB, (Frame("forward", "model.py", 5), MODULE, FUNC, LINE))
    program.alloc(8 * MIB, AUTOGRAD)
    program.alloc(1 * MIB, BATCH)
    assert program.profile().peak.by_category[Category.GRADIENTS] == 8 * MIB


def test_an_optimizer_within_the_backward_pass_does_not_make_two_of_it() -> None:
    program = Program()
    program.alloc(4 * MIB, FORWARD)
    for _ in range(5):
        scratch = program.alloc(2 * MIB, AUTOGRAD)
        update = program.alloc(1 * MIB, OPTIMIZER)
        program.free(update)
        program.alloc(512, AUTOGRAD)
        program.free(scratch)
    profile = program.profile()
    assert profile.backward_passes == 1
    assert profile.peak.by_category[Category.TEMPORARIES] == 3 * MIB


def test_a_workspace_is_one_behind_an_optimizer_that_allocates_nothing() -> None:
    workspace = 4096 * 1024 * 2 + 16 * 1024 * 8
    program = Program()
    for step in range(2):
        if step == 0:
            program.alloc(workspace, FORWARD)
        activation, seed = program.alloc(2 * MIB, FORWARD), program.alloc(512, GRADS)
        program.free(seed, activation, program.alloc(1 * MIB, BATCH))
    assert program.profile().peak.by_category[Category.WORKSPACES] == workspace


def test_a_batch_and_a_gradient_of_the_size_of_a_workspace_are_none() -> None:
    """A workspace is allocated once: those of the last step, which are still there, are as those of the one before."""
    program = Program()
    held: list[Held] = []
    for _ in range(2):
        batch = program.alloc(8 * MIB, BATCH)
        kept = program.alloc(2 * MIB, FORWARD)
        program.free(*held)
        seed = program.alloc(512, GRADS)
        gradient = program.alloc(8 * MIB, AUTOGRAD)
        program.free(program.alloc(1 * MIB, AUTOGRAD), kept, seed)
        program.free(program.alloc(16 * MIB, OPTIMIZER))
        held = [batch, gradient]
    left = [one.category for one in program.recording().blocks if one.block.freed is None]
    assert left == [Category.INPUTS, Category.GRADIENTS]


def test_optimizer_state_of_the_size_of_a_workspace_is_optimizer_state() -> None:
    program = Program()
    for step in range(2):
        activation, seed = program.alloc(2 * MIB, FORWARD), program.alloc(512, GRADS)
        if step == 0:
            program.alloc(32 * MIB, OPTIMIZER)
            program.alloc(32 * MIB, OPTIMIZER)
        program.free(seed, activation, program.alloc(1 * MIB, OPTIMIZER))
    held = program.profile().peak.by_category
    assert held[Category.OPTIMIZER_STATE] == 64 * MIB
    assert Category.WORKSPACES not in held


def test_inference_keeps_no_activations_and_a_workspace_is_one() -> None:
    program = Program()
    workspace = 4096 * 1024 * 2 + 16 * 1024 * 8
    program.alloc(workspace, FORWARD)
    program.free(program.alloc(2 * MIB, FORWARD))
    held = program.profile().peak.by_category
    assert held == {Category.WORKSPACES: workspace, Category.TEMPORARIES: 2 * MIB}


def test_what_fsdp_scatters_its_gradients_into_is_gradients_and_what_it_gathers_is_part_of_the_backward_pass() -> None:
    program = Program()
    hook = Frame("wrapper", f"{FSDP2}/_fsdp_common.py", 400)
    gradients: list[Held] = []
    for _ in range(2):
        activation = program.alloc(20 * MIB, FORWARD)
        seed = program.alloc(512, GRADS)
        gathered = program.alloc(9 * MIB, (GATHER, hook))
        whole = program.alloc(8 * MIB, AUTOGRAD)
        program.free(*gradients, gathered, activation)
        sent, gradients = program.alloc(8 * MIB, (SCATTER, hook)), [program.alloc(4 * MIB, (SCATTER, hook))]
        program.free(whole, sent, seed)
        program.free(program.alloc(40 * MIB, OPTIMIZER))
    profile = program.profile()
    phases = {one.phase for one in profile.phases} - {StepPhase.UNKNOWN}  # before its first event
    assert phases == {StepPhase.FORWARD, StepPhase.BACKWARD, StepPhase.OPTIMIZER}
    assert profile.backward_passes == 2
    assert profile.peak.by_category[Category.GRADIENTS] == 4 * MIB
    in_backward = {
        category: max(sizes[at] for at, phase in enumerate(profile.timeline.phases) if phase is StepPhase.BACKWARD)
        for category, sizes in profile.timeline.by_category.items()
    }
    assert in_backward[Category.COMMUNICATION] == 9 * MIB


def test_what_checkpointing_computes_again_is_activations_until_the_backward_pass_drops_it() -> None:
    program = Program()
    kept = program.alloc(4 * MIB, FORWARD)
    program.alloc(512, GRADS)
    scratch, again = program.alloc(8 * MIB, AGAIN), program.alloc(16 * MIB, AGAIN)
    program.free(scratch)
    below = program.alloc(32 * MIB, AUTOGRAD)
    program.free(below, again, kept)
    peak = program.profile().peak
    assert peak.by_category[Category.ACTIVATIONS] == (4 + 16) * MIB
    assert peak.by_category[Category.TEMPORARIES] == 32 * MIB


@pytest.mark.parametrize(
    ("frames", "pool", "category"),
    [
        (
            [Frame("allocate", f"{SITE}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 80)],
            0,
            Category.COMMUNICATION,
        ),
        ([Frame("alloc_storage", f"{SITE}/distributed/fsdp/_fully_shard/_fsdp_param.py", 900)], 0, Category.PARAMETERS),
        ([Frame("<lambda>", MODULE.filename, 1100), Frame("_apply", MODULE.filename, 934)], 0, Category.PARAMETERS),
        ([Frame("__init__", f"{SITE}/nn/modules/linear.py", 106)], 0, Category.PARAMETERS),
        (
            [
                Frame("_resize_", f"{SITE}/storage.py", 1100),
                Frame("_alloc_padded_unsharded_flat_param", f"{SITE}/distributed/fsdp/_flat_param.py", 1400),
            ],
            0,
            Category.PARAMETERS,
        ),
        ([Frame("forward", "model.py", 5), MODULE], 1, Category.CUDA_GRAPHS),
    ],
)
def test_stack_and_pool_tell_what_the_phase_does_not(frames: list[Frame], pool: int, category: Category) -> None:
    program = Program()
    program.alloc(512, (LINE,))
    program.alloc(8 * MIB, (*frames, LINE), pool=pool)
    assert program.profile().peak.by_category[category] == 8 * MIB


def test_what_the_model_owns_is_told_by_address_whatever_made_it() -> None:
    program = Program()
    weight, bias, kept = program.alloc(8 * MIB, BATCH), program.alloc(512, AUTOGRAD), program.alloc(4 * MIB, AUTOGRAD)
    program.free(weight)
    again = program.alloc(9 * MIB, OPTIMIZER)
    owned = [OwnedMemory(one.address, Category.PARAMETERS) for one in (bias, again)]
    peak = program.profile(*owned, OwnedMemory(kept.address, Category.BUFFERS)).peak
    assert peak.by_category == {
        Category.PARAMETERS: 9 * MIB + 512,
        Category.BUFFERS: 4 * MIB,
    }


def test_what_was_owned_at_the_beginning_may_be_freed_and_others_have_its_address() -> None:
    trace = open_trace(SNAPSHOTS / "steady_lm.late.snap.zst")
    blocks = lives_of(trace).blocks
    earlier = next(one for one in blocks if one.made == BEFORE and one.freed is not None)
    later = [one for one in blocks if one.address == earlier.address and one.made != BEFORE]
    purposes = Purposes(
        trace.stacks, stretches_of(trace), blocks, (), [OwnedMemory(earlier.address, Category.OPTIMIZER_STATE)]
    )
    assert purposes.category(earlier) is Category.OPTIMIZER_STATE
    assert later
    assert all(purposes.category(one) is not Category.OPTIMIZER_STATE for one in later)


def test_of_equal_peaks_the_one_of_which_most_is_known_is_shown() -> None:
    program = Program()
    program.free(program.alloc(3 * MIB, AUTOGRAD))  # before any stack that tells the phase
    program.alloc(512, BATCH)
    program.free(program.alloc(3 * MIB - 512, FORWARD))
    assert Category.UNKNOWN not in program.profile().peak.by_category


def test_a_recording_without_stacks_says_that_it_knows_nothing() -> None:
    requests = Requests()
    requests.alloc(3 * MIB)
    profile = profile_of(requests.trace())
    assert (profile.peak.by_category, profile.peak.unknown_share) == ({Category.UNKNOWN: 3 * MIB}, 1.0)
    assert [one.phase for one in profile.phases] == [StepPhase.UNKNOWN]


def test_rounding_is_a_category_of_its_own() -> None:
    program = Program()
    program.alloc(1000, FORWARD)
    assert program.profile().peak.by_category == {Category.OTHER: 1000, Category.ROUNDING: 24}


def test_an_empty_recording_has_an_empty_profile() -> None:
    profile = profile_of(Requests().trace())
    assert (profile.peak.allocated_bytes, profile.peak.unknown_share, profile.lines) == (0, 0.0, ())


@pytest.mark.parametrize("name", RECORDED)
def test_categories_of_a_recording_sum_to_what_was_allocated(name: str) -> None:
    trace = open_trace(SNAPSHOTS / name)
    profile = profile_of(trace)
    assert profile.is_exact
    assert profile.peak.allocated_bytes == replay(trace).peak_allocated_bytes
    assert sum(profile.peak.by_category.values()) == profile.peak.allocated_bytes
    rounding = profile.peak.by_category.get(Category.ROUNDING, 0)
    assert sum(line.held_bytes for line in profile.lines) + rounding == profile.peak.allocated_bytes
    assert len(profile.timeline.events) <= MAX_TIMELINE_POINTS
    sums = [sum(column) for column in zip(*profile.timeline.by_category.values(), strict=True)]
    assert max(sums) == profile.peak.allocated_bytes
    assert sums[0] <= profile.peak.allocated_bytes
    assert max(one.peak_bytes for one in profile.phases) == profile.peak.allocated_bytes


@pytest.mark.parametrize("name", RECORDED)
def test_sizes_of_blocks_are_those_that_the_snapshot_lists(name: str) -> None:
    trace = open_trace(SNAPSHOTS / name)
    lives = sorted((one.requested_bytes, one.size_bytes) for one in lives_of(trace).blocks if one.freed is None)
    listed = sorted(
        (block.requested_bytes, block.size_bytes)
        for segment in trace.end or ()
        for block in segment.blocks
        if block.state is BlockState.ACTIVE_ALLOCATED
    )
    assert lives == listed


def test_a_language_model_has_as_many_bytes_of_gradients_as_of_parameters_and_twice_as_many_of_adams_state() -> None:
    held = profile_of(open_trace(SNAPSHOTS / "steady_lm.late.snap.zst")).peak.by_category
    assert held[Category.GRADIENTS] == held[Category.PARAMETERS]
    assert 0 <= held[Category.OPTIMIZER_STATE] - 2 * held[Category.PARAMETERS] < 16 * KIB
    assert Category.UNKNOWN not in held


def test_other_settings_than_the_recorded_ones_are_not_called_exact() -> None:
    trace = open_trace(SNAPSHOTS / "steady_lm.late.snap.zst")
    profile = profile_of(replace(trace, alloc_conf="roundup_power2_divisions:4"))
    assert not profile.is_exact
    assert sum(profile.peak.by_category.values()) == profile.peak.allocated_bytes


STACKS = st.sampled_from([BATCH, FORWARD, LOSS, GRADS, AUTOGRAD, OPTIMIZER, AGAIN])
EVENTS = st.lists(st.tuples(st.booleans(), st.integers(1, 30 * MIB), STACKS), max_size=60)


@given(EVENTS)
def test_categories_sum_to_the_live_bytes_whatever_a_program_does(events: list[tuple[bool, int, Stack]]) -> None:
    program, alive, live_bytes, most_bytes = Program(), list[Held](), 0, 0
    for is_alloc, size_bytes, stack in events:
        if is_alloc or not alive:
            alive.append(program.alloc(size_bytes, stack))
            live_bytes += size_bytes
        else:
            held = alive.pop(size_bytes % len(alive))
            program.free(held)
            live_bytes -= held.size_bytes
        most_bytes = max(most_bytes, live_bytes)
    profile = program.profile()
    timeline = profile.timeline
    asked = [column for category, column in timeline.by_category.items() if category is not Category.ROUNDING]
    assert max((sum(column) for column in zip(*asked, strict=True)), default=0) == most_bytes
    assert sum(profile.peak.by_category.values()) == profile.peak.allocated_bytes >= most_bytes


NOTHING_TRAINED = "Nothing is trained in this recording, which has no backward pass"


def test_a_recording_without_a_backward_pass_says_that_nothing_is_trained() -> None:
    inference, training = Program(), Program()
    inference.alloc(1 * MIB, BATCH), inference.alloc(4 * MIB, FORWARD)
    assert NOTHING_TRAINED in peak_sentence(inference.profile())
    a_step(training)
    assert NOTHING_TRAINED not in peak_sentence(training.profile())


def test_the_line_that_holds_most_of_other_is_named_with_its_time() -> None:
    program = Program()
    program.alloc(1 * MIB, BATCH), program.alloc(4 * MIB, FORWARD), program.alloc(4 * MIB, FORWARD)
    assert list(doubts(program.profile())) == [
        "89% of the peak is other: its lines are known, its purpose is not. The largest part, 8.0 MiB in 2 blocks, was "
        "allocated in the forward pass at model.py:5 in forward."
    ]


def test_of_other_from_before_the_recording_it_is_said_how_to_record_more() -> None:
    profile = profile_of(open_trace(SNAPSHOTS / "total_loss_graph.late.snap.zst"))
    said = next(doubts(profile))
    assert said.startswith("82% of the peak is other: ")
    assert "was allocated before the recording began at train/scenarios.py:21 in forward. If these are tensors" in said
    assert said.endswith("as does `with tidegauge.profile(model, optimizer)`.")
    assert "tidegauge.profile" not in next(doubts(profile, of_steps=True))


def test_only_what_was_there_when_the_recording_began_is_from_before() -> None:
    program = Program()
    program.alloc(4 * MIB, AUTOGRAD)
    trace = program.recording().trace
    assert [phase_of_line(one) for one in profile_of(replace(trace, stack=trace.stack[:0])).lines] == ["unknown"]
    recorded = profile_of(open_trace(SNAPSHOTS / "steady_lm.late.snap.zst")).lines
    before = [one for one in recorded if phase_of_line(one) == "before"]
    assert before
    assert all(one.before_bytes == one.held_bytes for one in before)


def test_events_of_unknown_kinds_are_counted() -> None:
    program = Program()
    a_step(program)
    trace = program.recording().trace
    assert not any("left out" in said for said in doubts(profile_of(trace)))
    profile = profile_of(replace(trace, skipped={"events of the unknown kind 'teleport'": 2}))
    said = (
        "2 events left out, of kinds that this version of Tidegauge does not know, such as a newer PyTorch's: figures "
        "may be off."
    )
    assert said in doubts(profile)


def test_a_recording_without_training_is_not_one_without_stacks() -> None:
    steady = steady_profile()
    said = next(doubts(replace(steady, phases=())))
    assert said == (
        "The recording has no forward pass, backward pass or optimizer's step, so phases are not known, and few "
        "purposes."
    )
    without_stacks = tuple(line._replace(line=None) for line in steady.lines)
    assert next(doubts(replace(steady, phases=(), lines=without_stacks))).startswith("The recording has no stacks, ")
