from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.whatif.candidates import (
    EXPANDABLE,
    GC,
    LARGE_SEGMENT,
    MAX_SPLIT,
    NON_SPLIT_ROUNDING,
    PLACEMENT_KEYS,
    ROUNDUP,
    SINCE,
    Candidates,
    Changes,
    in_effect,
    split_sizes_mb,
)
from tidegauge.core.alloc_conf import parse_alloc_conf
from tidegauge.core.allocator.settings import AllocatorSettings
from tidegauge.core.allocator.trace import Trace
from whatif_worlds import MIB, alloc, free, trace_of


def sizes_trace(*sizes_mb: float, alloc_conf: str = "", torch_version: str | None = "2.13.0") -> Trace:
    events = [
        event for place, size_mb in enumerate(sizes_mb) for event in alloc(place * 1024 * MIB, int(size_mb * MIB))
    ]
    return trace_of(events, alloc_conf=alloc_conf, torch_version=torch_version)


def candidates(
    trace: Trace | None = None, *, torch_version: str | None = None, cap_bytes: int | None = None
) -> Candidates:
    return Candidates(trace_of() if trace is None else trace, torch_version=torch_version, cap_bytes=cap_bytes)


def changed_conf(conf: str, changes: Changes) -> str:
    return candidates(trace_of(alloc_conf=conf)).conf(changes)


def test_other_keys_stay_as_their_owner_wrote_them() -> None:
    conf = "pinned_use_background_threads:True,max_split_size_mb:64,roundup_power2_divisions:[256:1,>:4]"
    changed = changed_conf(conf, {MAX_SPLIT: None, EXPANDABLE: "True"})
    assert changed == "pinned_use_background_threads:True,roundup_power2_divisions:[256:1,>:4],expandable_segments:True"


def test_split_sizes_above_every_request_are_not_tried() -> None:
    assert split_sizes_mb(sizes_trace(1, 5, 30, 100)) == [20, 32, 64, 100]


def test_a_job_of_small_requests_has_no_split_size_to_try() -> None:
    assert split_sizes_mb(sizes_trace(0.001, 1, 19)) == []


def test_split_sizes_cut_the_job_s_own_sizes_at_their_widest_gap() -> None:
    found = split_sizes_mb(sizes_trace(24, 26, 27, 301, 303))
    assert 301 in found
    assert not {24, 27, 303} & set(found)


def test_whatif_candidates_take_split_sizes_from_requested_sizes_only() -> None:
    trace = trace_of([*alloc(0, MIB), *free(0, 500 * MIB)])
    assert split_sizes_mb(trace) == []


def thresholds(*, cap_bytes: int | None) -> list[str | None]:
    changes = candidates(sizes_trace(30), cap_bytes=cap_bytes).single()
    return [change[GC] for change in changes if GC in change]


def test_garbage_collection_is_tried_under_a_cap_only() -> None:
    assert thresholds(cap_bytes=None) == []
    assert thresholds(cap_bytes=1 << 30) == ["0.6", "0.8"]


def test_whatif_candidates_unset_the_owners_settings_one_by_one_and_together() -> None:
    trace = sizes_trace(30, alloc_conf="max_split_size_mb:64,pinned_num_register_threads:2,expandable_segments:False")
    changes = candidates(trace, torch_version=trace.torch_version).single()
    assert [change for change in changes if None in change.values()] == [
        {EXPANDABLE: None},
        {MAX_SPLIT: None},
        {EXPANDABLE: None, MAX_SPLIT: None},
        {EXPANDABLE: "True", MAX_SPLIT: None},
    ]


@pytest.mark.parametrize(
    ("torch_version", "knows_segments", "knows_rounding"),
    [(None, False, False), ("2.4.1", False, False), ("2.9.1", False, True), ("2.11.0", True, True)],
)
def test_a_key_that_the_torch_does_not_know_is_never_proposed(
    torch_version: str | None, knows_segments: bool, knows_rounding: bool
) -> None:
    candidate = candidates(sizes_trace(30, 90, torch_version=torch_version), torch_version=torch_version)
    singles = candidate.single()
    combined = candidate.combined([{MAX_SPLIT: "64"}], singles)
    proposed = {key for change in [*singles, *combined] for key in change}
    assert (LARGE_SEGMENT in proposed) is knows_segments
    assert (NON_SPLIT_ROUNDING in proposed) is knows_rounding


def test_helpful_settings_are_combined_by_twos_and_threes_the_best_value_of_each_key() -> None:
    helpful: list[Changes] = [{ROUNDUP: "8"}, {ROUNDUP: "4"}, {LARGE_SEGMENT: "64"}, {GC: "0.8"}]
    found = candidates(torch_version="2.13.0").combined(helpful, [])
    assert {ROUNDUP: "8", LARGE_SEGMENT: "64"} in found
    assert {ROUNDUP: "8", LARGE_SEGMENT: "64", GC: "0.8"} in found
    assert not any(change.get(ROUNDUP) == "4" for change in found)


def test_expandable_segments_are_combined_with_rounding_even_where_rounding_alone_does_not_help() -> None:
    found = candidates().combined([], [{ROUNDUP: "4"}, {MAX_SPLIT: "64"}])
    assert found == [{EXPANDABLE: "True", ROUNDUP: "4"}]


KEYS = st.sampled_from(PLACEMENT_KEYS)


@given(st.lists(st.dictionaries(KEYS, st.sampled_from(["True", "4", "64", None]), min_size=1, max_size=1), max_size=8))
def test_whatif_candidates_combine_only_known_settings_that_take_effect(helpful: list[dict[str, str | None]]) -> None:
    for change in candidates(torch_version="2.9.0").combined(helpful, []):
        assert len(change) > 1
        assert not (change.get(EXPANDABLE) == "True" and (change.get(GC) or change.get(MAX_SPLIT)))
        assert not any(value and SINCE.get(key, (2, 0)) > (2, 9) for key, value in change.items())


@given(st.dictionaries(KEYS, st.sampled_from(["True", "4", None])), st.dictionaries(KEYS, st.just("8")))
def test_a_change_is_what_is_read_back(changes: dict[str, str | None], own: dict[str, str]) -> None:
    conf = changed_conf(",".join(f"{key}:{value}" for key, value in own.items()), changes)
    expected = {**own, **changes}
    assert parse_alloc_conf(conf) == {key: value for key, value in expected.items() if value is not None}


def test_settings_without_effect_are_the_same_as_none() -> None:
    plain = AllocatorSettings()
    assert in_effect(replace(plain, garbage_collection_threshold=0.8), cap_bytes=None) == plain
    assert in_effect(replace(plain, garbage_collection_threshold=0.8), cap_bytes=1 << 30) != plain
    assert in_effect(replace(plain, max_non_split_rounding_bytes=64 * MIB), cap_bytes=None) == plain
    expandable = replace(plain, expandable_segments=True)
    assert in_effect(replace(expandable, garbage_collection_threshold=0.8), cap_bytes=1 << 30) == expandable
    assert in_effect(replace(expandable, max_split_bytes=64 * MIB), cap_bytes=None) != expandable
    assert in_effect(replace(plain, max_split_bytes=64 * MIB), cap_bytes=None) != plain
