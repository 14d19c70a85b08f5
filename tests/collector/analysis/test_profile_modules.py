"""The peak by module: a tree whose totals add up, and repeated layers as one row."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from allocator_traces import Requests
from tidegauge.analysis.profile.modules import MAX_DEPTH, module_groups, module_tree
from tidegauge.analysis.profile.profile import profile_of
from tidegauge.core.allocator.trace import Frame
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import MAX_MODULES, OwnedMemory, SeenGradient, StepProfile
from tidegauge.core.snapshot_columns import MODULE_WORD
from tidegauge.core.wire import from_wire, to_wire

KIB, MIB = 1 << 10, 1 << 20
ACTIVATIONS, PARAMETERS = Category.ACTIVATIONS, Category.PARAMETERS
FORWARD = (Frame("_call_impl", "/site-packages/torch/nn/modules/module.py", 1790), Frame("train", "train.py", 9))


def profile_with(*words: str, owned: bool = False, size_bytes: int = MIB) -> StepProfile:
    """Of a forward pass that allocates a block under each word."""
    requests = Requests()
    held = [requests.alloc(size_bytes) for _ in words]
    trace = requests.trace()
    numbers = iter(range(len(words)))
    metadata = array("i", (next(numbers) if action == 0 else -1 for action in trace.action))
    stack = array("i", [0] * len(trace))
    trace = replace(trace, stack=stack, stacks=(FORWARD,), metadata=metadata, words=words)
    return profile_of(trace, owned=[OwnedMemory(held[0].address, PARAMETERS, "Net.head")] if owned else [])


def test_words_of_the_probe_name_modules_and_others_do_not() -> None:
    profile = profile_with(f"{MODULE_WORD}Net.body", "warm-up", MODULE_WORD, f"{MODULE_WORD}Net")
    assert [(one.path, one.own_bytes, one.total_bytes) for one in profile.modules] == [
        ("Net", MIB, 2 * MIB),
        ("Net.body", MIB, MIB),
    ]
    assert profile.outside_modules_bytes == 2 * MIB


def test_what_a_module_owns_is_its_own_whatever_ran_when_it_was_made() -> None:
    profile = profile_with(f"{MODULE_WORD}Net.body", owned=True)
    assert [(one.path, one.own) for one in profile.modules] == [("Net", {}), ("Net.head", {PARAMETERS: MIB})]


def test_a_gradient_that_was_seen_at_a_step_counts_to_its_module_while_it_lived() -> None:
    requests = Requests()
    requests.alloc(20 * MIB)
    gradient = requests.alloc(3 * MIB)
    requests.alloc(MIB)
    trace = requests.trace()
    allocated = [event for event, action in enumerate(trace.action) if action == 0]
    stack = array("i", [-1] * len(trace))
    stack[allocated[0]] = stack[allocated[-1]] = 0
    trace = replace(trace, stack=stack, stacks=(FORWARD,), time_us=array("q", range(100, 100 + len(trace))))
    at_us = trace.time_us[allocated[1]]

    def gradients(unix_us: int) -> dict[str, int]:
        profile = profile_of(trace, gradients=[SeenGradient(gradient.address, unix_us, "Net.head")])
        return {one.path: one.own.get(Category.GRADIENTS, 0) for one in profile.modules}

    assert gradients(at_us)["Net.head"] == 3 * MIB
    assert gradients(at_us - 1) == {}  # what lay there then was another one
    trace = replace(trace, time_us=array("q"))
    assert gradients(at_us) == {}  # nobody knows when


def test_a_workspace_belongs_to_no_module() -> None:
    assert profile_with(f"{MODULE_WORD}Net", size_bytes=4096 * 1024 * 2 + 16 * 1024 * 8).modules == ()


def test_a_recording_without_words_has_no_tree() -> None:
    profile = profile_of(Requests().trace())
    assert (profile.modules, profile.modules_missing) == ((), None)


def test_a_profile_of_an_earlier_version_is_read() -> None:
    profile = profile_with(f"{MODULE_WORD}Net")
    wire = to_wire(profile)
    assert isinstance(wire, dict)
    assert from_wire(StepProfile, wire) == profile
    del wire["modules"], wire["modules_missing"]
    assert from_wire(StepProfile, wire) == replace(profile, modules=())


def test_larger_modules_come_first_each_before_those_below_it() -> None:
    tree = module_tree([("Net.a", ACTIVATIONS, 1), ("Net.b.c", ACTIVATIONS, 5), ("Other", ACTIVATIONS, 2)])
    assert [one.path for one in tree] == ["Net", "Net.b", "Net.b.c", "Net.a", "Other"]


def test_the_smallest_modules_are_left_out_beyond_the_bound() -> None:
    tree = module_tree((f"Net.layers.{number}", ACTIVATIONS, number + 1) for number in range(MAX_MODULES + 50))
    assert len(tree) == MAX_MODULES
    assert tree[0].total_bytes == sum(range(1, MAX_MODULES + 51))
    assert [one.path for one in tree[:3]] == ["Net", "Net.layers", f"Net.layers.{MAX_MODULES + 49}"]
    assert sum(one.own_bytes for one in tree) == tree[0].total_bytes
    assert tree[1].own_bytes == sum(range(1, 53))


def test_a_path_of_any_depth_is_bounded() -> None:
    tree = module_tree([(".".join("a" * 5_000), ACTIVATIONS, 7)])
    assert len(tree) == MAX_DEPTH
    assert tree[-1].own_bytes == 7


PATHS = st.lists(st.sampled_from("abc01"), min_size=1, max_size=5).map(".".join)
HELD = st.lists(st.tuples(PATHS, st.sampled_from([ACTIVATIONS, PARAMETERS]), st.integers(1, 1 << 40)), max_size=40)


@given(HELD)
def test_totals_are_a_modules_own_and_those_below_it(held: list[tuple[str, Category, int]]) -> None:
    tree = module_tree(held)
    totals = {one.path: Counter(one.own) for one in tree}
    for one in tree:
        for other in tree:
            if other.path.startswith(f"{one.path}."):
                totals[one.path].update(other.own)
    assert all(one.total == totals[one.path] for one in tree)
    assert sum(one.total_bytes for one in tree if "." not in one.path) == sum(size for _, _, size in held)
    assert sum(group.held_bytes for group in module_groups(tree)) == sum(size for _, _, size in held)


def test_repeated_layers_are_one_row_and_parts_of_a_sequential_are_not() -> None:
    held = [
        (f"Net.blocks.{block}.{part}", ACTIVATIONS, size)
        for block in range(12)
        for part, size in (("mlp.0", 16), ("mlp.1", 8), ("norm", 4))
    ]
    held += [(f"Net.blocks.{block}", ACTIVATIONS, 2) for block in range(12)]
    held.append(("Net.head", PARAMETERS, 7))
    assert [(one.path, one.modules, one.held_bytes) for one in module_groups(module_tree(held))] == [
        ("Net.blocks.*.mlp.0", 12, 192),
        ("Net.blocks.*.mlp.1", 12, 96),
        ("Net.blocks.*.norm", 12, 48),
        ("Net.blocks.*", 12, 24),
        ("Net.head", 1, 7),
    ]
