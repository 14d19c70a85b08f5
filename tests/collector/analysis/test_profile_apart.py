"""A profile that a process of its own makes: the same, or why there is none."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from fake_node import PID
from rank_profiles import STEADY, advised_profile, recorded_snapshot, steady_profile
from rank_windows import recording
from tidegauge.analysis.profile import apart
from tidegauge.analysis.profile.apart import AdviceFacts, profile_apart
from tidegauge.analysis.profile.lives import BEFORE
from tidegauge.analysis.profile.recording import recording_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import OwnedTensor

SAID = recording(PID, boundaries_us=(), owned=(), roots=None)
CONTENT = zlib.decompress(recorded_snapshot())


def test_a_profile_made_apart_is_the_same_with_advice() -> None:
    assert profile_apart(SAID, CONTENT) == advised_profile()
    facts = AdviceFacts(world_size=8, limit_bytes=80 << 30)
    assert profile_apart(SAID, CONTENT, facts) == advised_profile(ranks=8, limit_bytes=80 << 30)


def test_a_profile_does_without_advice_that_fails_or_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MAX_ADVISED_EVENTS", 2_999)
    assert apart.profile_here(SAID, CONTENT, AdviceFacts()) == steady_profile()
    monkeypatch.setattr(apart, "MAX_ADVISED_EVENTS", 3_000)
    assert apart.profile_here(SAID, CONTENT, AdviceFacts()) == advised_profile()
    assert apart.profile_here(SAID, CONTENT, AdviceFacts(limit_bytes=1 << 70)) == steady_profile()


def test_what_belongs_to_a_module_is_told_by_the_names_that_the_rank_gives() -> None:
    block = next(
        one
        for one in recording_of(open_trace(STEADY)).blocks
        if one.block.requested_bytes > 1 << 20 and one.block.freed is None
    )
    named = OwnedTensor(
        block.block.address, block.block.requested_bytes, Category.PARAMETERS, "head.mlp.weight", model=0
    )
    found = profile_apart(replace(SAID, owned=(named,), models=("Net",), modules_missing="compiled"), CONTENT)
    assert [one.path for one in found.modules] == ["Net", "Net.head", "Net.head.mlp"]
    assert found.modules_missing == "compiled"


@pytest.mark.parametrize(
    ("content", "device", "words"),
    [
        (b"nonsense", 0, "snapshot"),
        (CONTENT[:-100], 0, "snapshot"),
        (CONTENT, 3, "no events of device 3"),
    ],
)
def test_what_cannot_be_profiled_says_why(content: bytes, device: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        profile_apart(recording(PID, device=device, boundaries_us=(), owned=(), roots=None), content)


def test_a_recording_that_ended_before_its_first_step_says_so() -> None:
    later = recording(PID, boundaries_us=(1 << 60,), owned=(), roots=None)
    with pytest.raises(ValueError, match="no events of the recorded steps"):
        profile_apart(later, CONTENT)


def test_a_recording_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(ValueError, match="it takes longer than"):
        profile_apart(SAID, CONTENT, most_s=0.001)


def test_memory_of_no_model_has_the_name_that_the_rank_gives_and_a_models_has_none() -> None:
    blocks = (one.block for one in recording_of(open_trace(STEADY)).blocks)
    workspace = next(one for one in blocks if one.made == BEFORE and one.freed is None and one.stack < 0)
    for category, name in ((Category.OTHER, "Ema.shadow"), (Category.PARAMETERS, None)):
        owned = OwnedTensor(workspace.address, workspace.requested_bytes, category, "Ema.shadow['head']")
        found = apart.profile_here(replace(SAID, owned=(owned,), owned_before=(owned,)), CONTENT)
        assert [one.name for one in found.lines if one.category is category and one.line is None] == [name]
