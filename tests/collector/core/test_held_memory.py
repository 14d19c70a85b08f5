from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.evidence.held_memory import (
    FreeBlock,
    HeldMemory,
    free_words,
    hold,
    longer_copy_words,
    owner_lines,
)
from tidegauge.core.evidence.owners import CodeLine, LiveBlock, asking_line, is_library, owners_of

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PRIVATE = (0, 7)
TORCH = CodeLine("/home/ada/venv/lib/python3.11/site-packages/torch/nn/functional.py", 100, "linear")
HELPER = CodeLine("/home/ada/lm/blocks.py", 12, "make")
TRAIN = CodeLine("/home/ada/lm/train.py", 40, "main")
EVALUATE = CodeLine("/home/ada/lm/train.py", 90, "evaluate")


def held(*live: LiveBlock, free: tuple[FreeBlock, ...] = ()) -> HeldMemory:
    return hold(live, free, pending_bytes=0)


@pytest.mark.parametrize(
    ("filename", "library"),
    [
        ("/home/ada/lm/train.py", False),
        ("train.py", False),
        ("/home/ada/torchlight/train.py", False),
        (TORCH.filename, True),
        ("/usr/lib/python3.10/runpy.py", True),
        ("/usr/lib/python3/dist-packages/apex/optimizers.py", True),
        ("/opt/pytorch/torch/nn/modules/module.py", True),
        ("<frozen runpy>", True),
        ("??", True),
        ("/pytorch/aten/src/ATen/EmptyTensor.cpp", True),
    ],
)
def test_is_library_recognises_files_of_libraries(filename: str, library: bool) -> None:
    assert is_library(filename) == library


def test_the_line_that_asked_is_the_innermost_of_the_program() -> None:
    assert asking_line([TORCH, HELPER, TRAIN]) == HELPER
    assert asking_line([CodeLine("alloc.cpp", 1, "malloc"), TORCH]) == TORCH
    assert asking_line([]) is None


def test_owners_are_lines_the_largest_first_with_the_caller_that_most_came_by() -> None:
    small, large = LiveBlock(1 * MIB, [TORCH, TRAIN]), LiveBlock(2 * MIB, [TORCH, HELPER, TRAIN])
    other = LiveBlock(3 * MIB, [HELPER, TORCH, EVALUATE])
    first, second = owners_of([small, large, other])
    assert (first.line, first.held_bytes, first.blocks, first.block_bytes) == (HELPER, 5 * MIB, 2, None)
    assert first.caller == EVALUATE
    assert (second.line, second.block_bytes, second.caller) == (TRAIN, 1 * MIB, None)


def test_blocks_without_a_stack_are_grouped_by_size_and_a_workspace_is_named() -> None:
    owners = owners_of([LiveBlock(64 * MIB), LiveBlock(64 * MIB), LiveBlock(32 * MIB)])
    assert [(owner.held_bytes, owner.blocks, owner.line) for owner in owners] == [
        (128 * MIB, 2, None),
        (32 * MIB, 1, None),
    ]
    assert owners[0].what is None
    assert owners[1].what is not None
    assert "cuBLAS" in owners[1].what
    assert owners_of([LiveBlock(8 * MIB)] * 245)[0].what is None, "too many for workspaces"


def test_owner_lines_omit_negligible_holders() -> None:
    lines = owner_lines(held(LiveBlock(GIB, [TRAIN]), LiveBlock(512, [EVALUATE])))
    assert lines == ["1.0 GiB (100 %) in 1 block: /home/ada/lm/train.py:40 in main"]


QUEUE = LiveBlock(600 * MIB, [TORCH, HELPER])


def test_a_queue_that_torch_cat_makes_longer_is_named_with_its_line() -> None:
    others = (LiveBlock(200 * MIB, [TRAIN]), LiveBlock(200 * MIB, [EVALUATE]))
    said = longer_copy_words(held(QUEUE, *others), 612 * MIB) or ""
    assert said.startswith(
        "The request is slightly larger than one live block of 600.0 MiB (/home/ada/lm/blocks.py:12 in"
    )
    assert "torch.cat" in said
    assert "allocate it at full length once" in said


@pytest.mark.parametrize(
    ("blocks", "wanted_bytes"),
    [
        ((QUEUE,), 600 * MIB),  # another tensor of the same shape: nothing became longer
        ((QUEUE,), 700 * MIB),
        ((QUEUE,), 590 * MIB),
        ((LiveBlock(600 * MIB - 512, [HELPER]),), 600 * MIB),  # the same, rounded up to a segment
        ((QUEUE, QUEUE), 612 * MIB),  # layers of one model
        ((QUEUE, LiveBlock(602 * MIB, [TRAIN])), 612 * MIB),
        ((LiveBlock(20 * MIB, [HELPER]),), 22 * MIB),
        ((), 612 * MIB),
    ],
)
def test_no_other_request_is_taken_for_a_longer_copy(blocks: tuple[LiveBlock, ...], wanted_bytes: int) -> None:
    assert longer_copy_words(held(*blocks), wanted_bytes) is None


def test_a_long_path_keeps_its_end() -> None:
    far = CodeLine("/home/" + "x" * 500 + "/train.py", 3, "main")
    (line,) = owner_lines(held(LiveBlock(GIB, [far])))
    assert line.endswith("x/train.py:3 in main")
    assert len(line) < 200


def test_the_largest_free_block_is_of_the_pool_that_the_request_goes_to() -> None:
    memory = held(
        free=(
            FreeBlock(9 * MIB, 0, True, (0, 0)),
            FreeBlock(12 * MIB, 5, True, (0, 0)),
            FreeBlock(1 * MIB, 0, False, (0, 0)),
            FreeBlock(4 * GIB, 0, True, PRIVATE),
        )
    )
    assert memory.private_free_bytes == 4 * GIB
    assert memory.free_bytes == 22 * MIB
    assert [memory.largest_for(wanted) for wanted in (20 * MIB, 2 * MIB, None)] == [
        FreeBlock(12 * MIB, 5, True, (0, 0)),
        FreeBlock(1 * MIB, 0, False, (0, 0)),
        FreeBlock(12 * MIB, 5, True, (0, 0)),
    ]
    assert memory.largest_for(20 * MIB, stream=0) == FreeBlock(9 * MIB, 0, True, (0, 0))
    assert "3 blocks; largest usable by the request: 12.0 MiB. They belong to 2" in free_words(memory, 20 * MIB)


def test_a_request_whose_pool_has_nothing_free_is_told_so() -> None:
    memory = held(free=(FreeBlock(1 * MIB, 0, False, (0, 0)),))
    assert "none of them in the pool of this request" in free_words(memory, 64 * MIB)
    assert free_words(held(), 64 * MIB) == "The allocator had no free blocks."


lines = st.sampled_from([TORCH, HELPER, TRAIN, EVALUATE, CodeLine("", 0, "")])
live_blocks = st.builds(LiveBlock, st.integers(1, GIB), st.lists(lines, max_size=6).map(tuple))


@given(st.lists(live_blocks, max_size=40))
def test_owners_hold_all_live_bytes_and_blocks(live: list[LiveBlock]) -> None:
    memory = hold(live, (), pending_bytes=0)
    assert sum(owner.held_bytes for owner in memory.owners) == memory.live_bytes
    assert sum(owner.blocks for owner in memory.owners) == memory.live_blocks == len(live)
    sizes = [owner.held_bytes for owner in memory.owners]
    assert sizes == sorted(sizes, reverse=True)
