"""PyTorch's messages: real ones from the rig (torch 2.13), and those of older versions.

More of them, from public issues, are in test_oom_public_texts.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.oom.forms import OomText, OomTextForm, SizeRange, figures_of, neighbours, parse_message
from tidegauge.core.oom import OomKind, explain_case

DATA = Path(__file__).parents[2] / "data" / "oom"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
NATIVE = (
    "CUDA out of memory. Tried to allocate {wanted}. GPU 3 has a total capacity of {total} of which {free} is free. "
    "Including non-PyTorch memory, this process has {own} memory in use. Of the allocated memory {allocated} is "
    "allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
    "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for "
    "Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


def format_size(count: int) -> str:
    """As ``format_size`` in c10/core/CachingDeviceAllocator writes it."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count >= unit:
            return f"{count / unit:.2f} {name}"
    return f"{count} bytes"


def message(name: str) -> OomText:
    text = parse_message((DATA / f"{name}.txt").read_text())
    assert text is not None
    return text


def holds(size: SizeRange | None, count: int) -> bool:
    return size is not None and size.low_bytes <= count <= size.high_bytes


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("needed", OomKind.ALLOCATED),
        ("expandable", OomKind.ALLOCATED),
        ("two_ranks", OomKind.ALLOCATED),
        ("malloc_async", OomKind.ALLOCATED),
        ("cap", OomKind.CAP),
        ("malloc_async_cap", OomKind.CAP),
        ("torch_2_4", OomKind.CAP),
        ("pieces", OomKind.FRAGMENTATION),
        ("outside", OomKind.OUTSIDE_ALLOCATOR),
        ("torch_1_12", OomKind.OUTSIDE_ALLOCATOR),
        ("nvml_not_available", OomKind.OUTSIDE_ALLOCATOR),
        ("neighbour", OomKind.NEIGHBOUR),
        ("torch_2_1", OomKind.NEIGHBOUR),
        ("too_big", OomKind.TOO_BIG),
        ("pools", OomKind.PRIVATE_POOLS),
    ],
)
def test_a_message_alone_says_which_kind_it_was(name: str, kind: OomKind) -> None:
    case = figures_of(message(name))
    assert case is not None
    assert explain_case(case).kind is kind


def test_every_figure_of_the_native_message_is_read() -> None:
    text = message("pools")
    assert (text.form, text.device, text.at_least) == (OomTextForm.NATIVE, 0, "2.11")
    assert holds(text.wanted, 64 * MIB)
    assert holds(text.total, 8 * GIB)
    assert holds(text.free, 36 * MIB)
    assert holds(text.allocated, 8_009_000_000)
    assert holds(text.private_free, 2 * GIB)
    assert holds(text.unused, int(13.49 * MIB))
    assert text.own is not None
    case = figures_of(text)
    assert case is not None
    assert case.allocated_bytes == pytest.approx(5.46 * GIB, abs=0.01 * GIB)


def test_a_cap_that_refused_is_seen_however_the_decimals_fall() -> None:
    text = message("cap")
    assert holds(text.cap, 2 * GIB)
    case = figures_of(text)
    assert case is not None
    assert case.capped
    # 39.99 reserved and 20 MiB wanted of 40.00 allowed: as printed it would have fitted
    tight = parse_message(
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 80.00 GiB of which 39.50 GiB is "
        "free. 40.00 GiB allowed; Of the allocated memory 39.97 GiB is allocated by PyTorch, and 20.00 MiB is reserved "
        "by PyTorch but unallocated."
    )
    assert tight is not None
    tight_case = figures_of(tight)
    assert tight_case is not None
    assert tight_case.capped


def test_oom_message_without_nvml_leaves_other_memory_unknown() -> None:
    text = message("nvml_not_available")
    assert text.own is None
    assert [process.size for process in text.others] == [None]
    case = figures_of(text)
    assert case is not None
    assert (case.nontorch_bytes, case.others_bytes) == (None, None)


def test_in_a_container_the_process_that_fits_is_taken_for_its_own() -> None:
    text = message("torch_2_1")
    assert [process.pid for process in text.others] == [4242, 31337]
    assert [process.pid for process in neighbours(text)] == [4242]
    case = figures_of(text)
    assert case is not None
    assert case.others_bytes == pytest.approx(3 * GIB, abs=0.01 * GIB)
    assert case.nontorch_bytes == pytest.approx(1.47 * GIB, abs=0.02 * GIB)


def test_the_form_before_2_1_is_read_too() -> None:
    text = message("torch_1_12")
    assert (text.device, text.old) == (5, True)
    assert holds(text.wanted, 648 * MIB)
    assert text.unused is not None
    assert text.unused.likely_bytes == pytest.approx((23.65 - 22.96) * GIB, abs=0.02 * GIB)


def test_cached_memory_of_the_first_releases_is_what_was_not_in_use() -> None:
    text = parse_message(
        "CUDA out of memory. Tried to allocate 1.72 GiB (GPU 0; 10.76 GiB total capacity; 4.01 GiB already allocated; "
        "356.00 MiB free; 5.54 GiB cached)"
    )
    assert text is not None
    assert text.old
    assert holds(text.unused, int(5.54 * GIB))
    case = figures_of(text)
    assert case is not None
    assert case.reserved_bytes == pytest.approx(9.55 * GIB, abs=0.02 * GIB)
    assert explain_case(case).kind is OomKind.FRAGMENTATION


def test_a_cap_that_the_request_did_not_reach_is_not_to_blame() -> None:
    text = parse_message(
        "XPU out of memory. Tried to allocate 8.11 GiB. GPU 0 has a total capacity of 16.54 GiB of which 16.54 GiB is "
        "free. 8.27 GiB allowed; Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is reserved by "
        "PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory."
    )
    assert text is not None
    assert text.backend == "XPU"
    case = figures_of(text)
    assert case is not None
    assert not case.capped
    assert explain_case(case).kind is OomKind.ENOUGH_FREE


def test_processes_of_a_message_are_listed_the_largest_first() -> None:
    text = parse_message(
        "CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 64 MiB is "
        "free. Process 11 has 419.48 MiB memory in use. Including non-PyTorch memory, this process has 8.04 GiB memory "
        "in use. Process 22 has 14.85 GiB memory in use. Of the allocated memory 7.63 GiB is allocated by PyTorch, and "
        "40.11 MiB is reserved by PyTorch but unallocated."
    )
    assert text is not None
    case = figures_of(text)
    assert case is not None
    assert [pid for pid, _ in case.neighbours] == [22, 11]


def test_the_text_of_malloc_async_is_read() -> None:
    text = message("malloc_async_cap")
    assert (text.form, text.device) == (OomTextForm.ASYNC, 0)
    assert holds(text.cap, 2 * GIB)
    assert message("malloc_async").cap is None  # 2**64 - 1 bytes


def test_texts_with_few_figures_are_told_apart() -> None:
    assert message("huge").form is OomTextForm.UNNAMED_SIZE
    rejected = message("rejected")
    assert (rejected.form, rejected.at_least) == (OomTextForm.REJECTED, "2.12")
    assert holds(rejected.wanted, 16_777_216_000)
    assert figures_of(rejected) is None


def test_a_message_that_a_logger_wrapped_says_the_same() -> None:
    whole = (DATA / "pools.txt").read_text()
    wrapped = whole.replace(" GPU 0 has a", "\n│ GPU 0 has\n│   a").replace("PyTorch, with", "PyTorch,\n  with")
    assert parse_message(wrapped) == parse_message(whole)


def test_figures_of_a_following_message_are_not_taken_over() -> None:
    cut = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a tot"
    text = parse_message(cut + "\n" + (DATA / "needed.txt").read_text())
    assert text is not None
    assert holds(text.wanted, 2 * GIB)
    assert text.total is None
    assert figures_of(text) is None


def test_other_text_is_no_message() -> None:
    assert parse_message("RuntimeError: CUDA error: out of memory") is None
    assert parse_message("") is None


sizes = st.one_of(st.integers(0, 4096), st.integers(0, 1 << 41))


@given(wanted=sizes, total=sizes, free=sizes, own=sizes, allocated=sizes, unused=sizes)
def test_sizes_round_trip(**figures: int) -> None:
    text = parse_message(NATIVE.format(**{name: format_size(count) for name, count in figures.items()}))
    assert text is not None
    assert dict.fromkeys(figures, True) == {name: holds(getattr(text, name), count) for name, count in figures.items()}


@given(st.text(max_size=300))
def test_no_text_is_too_odd(noise: str) -> None:
    text = parse_message(f"CUDA out of memory. Tried to allocate {noise}")
    assert text is not None
    case = figures_of(text)
    if case is not None:
        assert explain_case(case).sentence


def test_figures_that_contradict_each_other_make_no_negative_ones() -> None:
    text = parse_message(
        "CUDA out of memory. Tried to allocate 0 bytes. GPU 0 has a total capacity of 0 bytes of which 0 bytes is "
        "free. 1 bytes allowed; Of the allocated memory 2 bytes is allocated by PyTorch, with 9 bytes allocated in "
        "private pools (e.g., CUDA Graphs), and 5 bytes is reserved by PyTorch but unallocated."
    )
    assert text is not None
    case = figures_of(text)
    assert case is not None
    assert case.allocated_bytes == 0
    assert "-" not in explain_case(case).sentence
