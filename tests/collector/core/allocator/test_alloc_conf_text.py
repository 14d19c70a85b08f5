"""The text of ``PYTORCH_ALLOC_CONF``: what each torch reads in it, and what it refuses."""

from __future__ import annotations

import pytest

from allocator_traces import MIB
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak, parse_settings, tie_break_of

NEW = "2.13.0"


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ("", {}),
        ("max_split_size_mb:64", {"max_split_bytes": 64 * MIB}),
        ("max_split_size_mb:20", {"max_split_bytes": 20 * MIB}),
        ("max_non_split_rounding_mb:32", {"max_non_split_rounding_bytes": 32 * MIB}),
        ("garbage_collection_threshold:0.6", {"garbage_collection_threshold": 0.6}),
        ("expandable_segments:True", {"expandable_segments": True}),
        ("expandable_segments:False", {}),
        ("large_segment_size_mb:11", {"large_segment_bytes": 11 * MIB}),
        (
            "max_split_size_mb:12,large_segment_size_mb:12",  # checked against each other in whatever order
            {"max_split_bytes": 12 * MIB, "large_segment_bytes": 12 * MIB},
        ),
        ("per_process_memory_fraction:0.25", {"memory_fraction": 0.25}),
        ("roundup_power2_divisions:4", {"roundup_power2_divisions": (4,) * 16}),
        (
            "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
            {"roundup_power2_divisions": (1,) * 9 + (2, 4) + (8,) * 5},
        ),
        ("roundup_power2_divisions:[2:8,16:4]", {"roundup_power2_divisions": (8, 8, 0, 0, 4) + (0,) * 11}),
        ("roundup_power2_divisions:[>:2]", {"roundup_power2_divisions": (2,) * 16}),
        ("pinned_use_background_threads:True,backend:native,release_lock_on_cudamalloc:False", {}),
        ("pinned_num_register_threads:8", {}),
    ],
)
def test_texts_mean_what_torch_reads(conf: str, expected: dict[str, object]) -> None:
    assert parse_settings(conf, NEW) == AllocatorSettings(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb:20,large_segment_size_mb:32", "at least 32"),
        ("max_split_size_mb:-1", "a whole number"),
        ("max_split_size_mb:1e3", "a whole number"),
        ("max_split_size_mb:" + "9" * 30, "a whole number"),
        ("max_non_split_rounding_mb:10", "at least 20"),
        ("large_segment_size_mb:10", "more than 10"),
        ("garbage_collection_threshold:0", "between 0 and 1"),
        ("garbage_collection_threshold:1.0", "between 0 and 1"),
        ("garbage_collection_threshold:nan", "a number"),
        ("expandable_segments:true", "True or False"),
        ("expandable_segments:1", "True or False"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:0", "powers of two"),
        ("roundup_power2_divisions:[3:2]", "powers of two"),
        ("roundup_power2_divisions:[2:2", "ends with ]"),
        ("per_process_memory_fraction:1.5", "from 0 to 1"),
        ("backend:cudaMallocAsync", "not modelled"),
        ("backend:mine", "native or cudaMallocAsync"),
        ("nonsense:1", "no allocator setting 'nonsense'"),
    ],
)
def test_alloc_conf_parser_refuses_settings_that_torch_refuses(conf: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_settings(conf, NEW)


@pytest.mark.parametrize(
    ("key", "before", "since"),
    [
        ("max_non_split_rounding_mb:32", "2.4.1", "2.5.0"),
        ("per_process_memory_fraction:0.5", "2.9.1", "2.10.0"),
        ("large_segment_size_mb:32", "2.10.0", "2.11.0+cu130"),
        ("throw_on_cudamalloc_oom:False", "2.11.0", "2.12.0"),
        ("pinned_max_cached_size_mb:64", "2.12.1", "2.13.0a0+git1234"),
    ],
)
def test_a_key_is_refused_by_a_torch_that_does_not_know_it_yet(key: str, before: str, since: str) -> None:
    parse_settings(key, since)
    parse_settings(key, None)  # of an unknown torch, any
    with pytest.raises(ValueError, match=f"torch {before} has no allocator setting .* it knows max_split_size_mb"):
        parse_settings(key, before)


def test_alloc_conf_parser_refuses_expandable_segments_reserve_of_torch_2_15() -> None:
    with pytest.raises(ValueError, match="not modelled"):
        parse_settings("expandable_segments_reserve:0.5", "2.15.0")
    with pytest.raises(ValueError, match=r"came with 2\.15"):
        parse_settings("expandable_segments_reserve:0.5", "2.14.1")


@pytest.mark.parametrize(("torch_version", "of_the_last"), [("2.9.1", 1), ("2.10.0", 8), ("2.13.0", 8)])
def test_the_rest_of_a_list_took_in_the_last_size_before_2_10(torch_version: str, of_the_last: int) -> None:
    divisions = parse_settings("roundup_power2_divisions:[2:2,8:4,32:8,>:1]", torch_version).roundup_power2_divisions
    assert divisions[:7] == (2, 2, 0, 4, 0, of_the_last, 1)


@pytest.mark.parametrize(
    ("torch_version", "tie_break"),
    [
        ("2.4.1", TieBreak.ADDRESS),
        ("2.9", TieBreak.ADDRESS),
        ("2.11.0+cu130", TieBreak.ADDRESS),
        ("2.12.1", TieBreak.BLOCK),
        ("2.13.0", TieBreak.SEGMENT),
        ("3.0", TieBreak.SEGMENT),
        (None, TieBreak.SEGMENT),
        ("of my own", TieBreak.SEGMENT),
    ],
)
def test_the_torch_says_how_ties_are_broken(torch_version: str | None, tie_break: TieBreak) -> None:
    assert tie_break_of(torch_version) is tie_break
    assert parse_settings("", torch_version).tie_break is tie_break
