"""Settings for later attempts as values: what may be set, what is set, and how they travel."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegauge.core.alloc_conf import CUDA_NAME, GENERAL_NAME, HIP_NAME, parse_alloc_conf
from tidegauge.core.jobs.settings import JobSettings, changes, decode, digest, encode, may_set, settings_name
from tidegauge.core.jobs.variables import FRACTION_VARIABLE

NAMES = st.sampled_from(
    [FRACTION_VARIABLE, "TIDEGAUGE_GPU_SHARE", CUDA_NAME, GENERAL_NAME, HIP_NAME, "LD_PRELOAD", "PATH", "TIDEGAUGE_",
     "TIDEGAUGE_x", "tidegauge_a", "PYTHONPATH", "TIDEGAUGE_A\n", "PYTORCH_CUDA_ALLOC_CONF ", ""]
) | st.text(max_size=20)  # fmt: skip
VALUES = st.sampled_from(["0.5", "0.25", "1", "0", "nan", "expandable_segments:True", "max_split_size_mb:64,x:[1,2]"])
ENVIRONS = st.dictionaries(NAMES, VALUES, max_size=5)
ALLOC_CONFS = st.dictionaries(
    st.sampled_from(["expandable_segments", "max_split_size_mb", "x"]), st.sampled_from(["True", "64", "[1,2]"])
)
SETTINGS = st.builds(
    JobSettings,
    job_id=st.just("7"),
    uid=st.integers(0, 1 << 32),
    from_restart=st.integers(0, 9),
    environ=ENVIRONS,
    alloc_conf=ALLOC_CONFS,
    torch_version=st.sampled_from([None, "2.2.0", "2.9.1+cu130", "2.10.0+rocm7", "2.11.0+cu130"]),
)


@given(SETTINGS, ENVIRONS)
def test_job_settings_change_only_allowed_variables(settings: JobSettings, environ: dict[str, str]) -> None:
    for name in changes(settings, environ):
        assert name.startswith("TIDEGAUGE_") or name in (CUDA_NAME, GENERAL_NAME, HIP_NAME)
        assert may_set(name)


@given(SETTINGS, ENVIRONS)
@example(
    JobSettings("7", 1, environ={CUDA_NAME: "x:1"}, alloc_conf={"y": "2"}, torch_version="2.11.0"),
    {GENERAL_NAME: "z:3"},
)
def test_doing_it_twice_is_doing_it_once(settings: JobSettings, environ: dict[str, str]) -> None:
    once = {**environ, **changes(settings, environ)}
    assert {**once, **changes(settings, once)} == once


@given(SETTINGS, ENVIRONS)
def test_the_allocator_settings_are_in_force_afterwards(settings: JobSettings, environ: dict[str, str]) -> None:
    after = {**environ, **changes(settings, environ)}
    if settings.alloc_conf:
        carried = [parse_alloc_conf(after.get(name, "")) for name in (CUDA_NAME, GENERAL_NAME, HIP_NAME)]
        assert any(found.items() >= settings.alloc_conf.items() for found in carried)


@pytest.mark.parametrize(
    ("given", "wanted", "after"),
    [
        (None, "0.5", "0.5"),
        ("0.8", "0.5", "0.5"),
        ("0.3", "0.5", "0.3"),
        ("0.50", "0.5", "0.50"),
        ("much", "0.5", "0.5"),
        ("0.8", "2", "0.8"),
        (None, "0", None),
    ],
)
def test_of_two_fractions_the_smaller_counts(given: str | None, wanted: str, after: str | None) -> None:
    environ = {} if given is None else {FRACTION_VARIABLE: given}
    settings = JobSettings("7", 1001, environ={FRACTION_VARIABLE: wanted})
    assert {**environ, **changes(settings, environ)}.get(FRACTION_VARIABLE) == after


def test_the_owners_allocator_settings_stay_beside_ours() -> None:
    settings = JobSettings("7", 1001, alloc_conf={"expandable_segments": "True"}, torch_version="2.9.0")
    assert changes(settings, {CUDA_NAME: "max_split_size_mb:64"}) == {
        CUDA_NAME: "max_split_size_mb:64,expandable_segments:True"
    }


@given(SETTINGS.filter(lambda settings: all(map(may_set, settings.environ))))
def test_a_file_gives_back_what_was_written(settings: JobSettings) -> None:
    assert decode(encode(settings)) == settings


@given(st.binary(max_size=200))
def test_anything_else_is_refused_with_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own say something else
        decode(content)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"alloc_conf": {"a:b": "1"}}, "no allocator setting"),
        ({"alloc_conf": {"expandable_segments": "True,backend:cudaMallocAsync"}}, "no allocator setting"),
        ({"alloc_conf": {"expandable_segments": "["}}, "no allocator setting"),
        ({"alloc_conf": {" a": "1"}}, "no allocator setting"),
        ({"version": 2}, "another version"),
        ({"environ": {"LD_PRELOAD": "/tmp/evil.so"}}, "it would set LD_PRELOAD"),
        ({"environ": {"TIDEGAUGE_X": 1}}, "no usable text"),
        ({"environ": {"TIDEGAUGE_X": "a\0b"}}, "no usable text"),
        ({"environ": {"TIDEGAUGE_X": "x" * 3000}}, "no usable text"),
        ({"alloc_conf": []}, "no object"),
        ({"uid": -1}, "not a count"),
        ({"uid": True}, "not a count"),
        ({"from_restart": "1"}, "not a count"),
        ({"job_id": 7}, "job_id is no text"),
        ({"torch_version": 2.11}, "torch_version is no text"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(change: dict[str, Any], why: str) -> None:
    right = json.loads(encode(JobSettings("7", 1001)))
    with pytest.raises(ValueError, match=why):
        decode(json.dumps({**right, **change}).encode())


def test_job_settings_decode_refuses_oversized_or_deeply_nested_input() -> None:
    with pytest.raises(ValueError, match="longer than"):
        decode(encode(JobSettings("7", 1001)) + b" " * 20_000)
    with pytest.raises(ValueError):  # noqa: PT011 - which of the two depends on the Python
        decode(b"[" * 16_000)


def test_the_digest_is_of_the_set_not_of_its_order() -> None:
    one, other = JobSettings("7", 1001), JobSettings("8", 1001)
    assert digest([one, other]) == digest([other, one])
    assert len({digest(()), digest([one]), digest([other]), digest([one, other])}) == 4


@pytest.mark.parametrize("job_id", ["", ".", "..", "../x", "a/b", "a b", "x" * 65, "7\n", "é"])
def test_an_id_that_cannot_be_a_file_name_has_none(job_id: str) -> None:
    assert settings_name(job_id) is None


def test_the_name_of_a_jobs_file() -> None:
    assert settings_name("4711") == "4711.json"
