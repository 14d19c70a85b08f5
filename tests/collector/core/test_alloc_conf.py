"""Allocator settings in text: merged into what the owner wrote, in the variable that the job's torch reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.alloc_conf import conf_names, format_alloc_conf, merge_alloc_conf, parse_alloc_conf

CUDA, HIP, GENERAL = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
EXPAND = {"expandable_segments": "True"}

keys = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
values = st.one_of(
    st.from_regex(r"[A-Za-z0-9.]{1,8}", fullmatch=True),
    st.from_regex(r"\[[0-9]{1,3}:[0-9](,[0-9]{1,3}:[0-9]){0,3}(,>:[0-9])?\]", fullmatch=True),
)


@pytest.mark.parametrize(
    ("environ", "version", "expected"),
    [
        ({}, None, {CUDA: "expandable_segments:True"}),
        ({}, "2.9.1", {CUDA: "expandable_segments:True"}),
        ({}, "2.11.0+cu130", {GENERAL: "expandable_segments:True"}),
        ({CUDA: ""}, "2.11.0", {GENERAL: "expandable_segments:True"}),
        ({CUDA: "max_split_size_mb:64"}, "2.11.0", {CUDA: "max_split_size_mb:64,expandable_segments:True"}),
        ({GENERAL: "max_split_size_mb:64"}, "2.11.0", {GENERAL: "max_split_size_mb:64,expandable_segments:True"}),
        # The CUDA name wins, so what stands in the other one is not in force.
        ({CUDA: "a:1", GENERAL: "b:2"}, "2.11.0", {CUDA: "a:1,expandable_segments:True"}),
        # 2.9 does not read the general name for CUDA: what stands there may be wrong without anybody knowing.
        ({GENERAL: "b:2"}, "2.9.1", {CUDA: "expandable_segments:True"}),
        # A torch that is not known may be either; the CUDA name is read by both.
        ({GENERAL: "b:2"}, None, {CUDA: "b:2,expandable_segments:True"}),
        ({HIP: "c:3"}, "2.11.0+rocm6.4", {HIP: "c:3,expandable_segments:True"}),
        ({}, "2.6.0+rocm6.2", {HIP: "expandable_segments:True"}),
        ({}, "2.11.0+rocm6.4", {GENERAL: "expandable_segments:True"}),
        ({HIP: "c:3"}, "2.11.0+cu130", {GENERAL: "expandable_segments:True"}),
    ],
)  # fmt: skip
def test_the_setting_lands_where_the_jobs_torch_reads_it(
    environ: dict[str, str], version: str | None, expected: dict[str, str]
) -> None:
    assert merge_alloc_conf(environ, EXPAND, torch_version=version) == expected


def test_a_setting_that_was_there_is_replaced_in_its_place() -> None:
    environ = {CUDA: " expandable_segments:False , roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:64"}
    merged = merge_alloc_conf(environ, EXPAND)
    assert merged == {CUDA: "expandable_segments:True,roundup_power2_divisions:[256:1,512:2,>:8],max_split_size_mb:64"}


def test_the_rocm_spelling_of_a_setting_is_the_same_setting() -> None:
    merged = merge_alloc_conf(
        {CUDA: "pinned_use_hip_host_register:True"}, {"pinned_use_cuda_host_register": "False"}, torch_version="2.9.1"
    )
    assert merged == {CUDA: "pinned_use_hip_host_register:False"}


def test_merge_alloc_conf_without_changes_sets_no_variable() -> None:
    assert merge_alloc_conf({CUDA: "a:1"}, {}) == {}


def test_of_a_key_written_twice_the_last_counts() -> None:
    assert parse_alloc_conf("a:1,b:2,a:3") == {"b": "2", "a": "3"}


def test_text_that_torch_would_refuse_is_left_for_torch_to_refuse() -> None:
    merged = merge_alloc_conf({CUDA: "nonsense,[a:1,b"}, EXPAND)
    assert merged == {CUDA: "nonsense,[a:1,b,expandable_segments:True"}


def test_a_torch_of_unknown_version_may_read_both_names() -> None:
    assert conf_names(None) == (CUDA, GENERAL)
    assert conf_names("2.9.1") == (CUDA,)


@given(st.dictionaries(keys, values, max_size=6))
def test_alloc_conf_round_trips(settings: dict[str, str]) -> None:
    assert parse_alloc_conf(format_alloc_conf(settings)) == settings


@given(st.dictionaries(keys, values, max_size=6), st.dictionaries(keys, values, min_size=1, max_size=4))
def test_merging_keeps_what_it_was_not_asked_to_change(theirs: dict[str, str], ours: dict[str, str]) -> None:
    environ = {CUDA: format_alloc_conf(theirs)}
    once = merge_alloc_conf(environ, ours)
    assert parse_alloc_conf(once[CUDA]) == {**theirs, **ours}
    assert merge_alloc_conf(once, ours) == once


@given(st.text(max_size=60))
def test_no_text_makes_it_raise(text: str) -> None:
    assert "expandable_segments:True" in merge_alloc_conf({CUDA: text}, EXPAND)[CUDA]
