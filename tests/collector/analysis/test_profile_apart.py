"""A profile that a process of its own makes: the same, or why there is none."""

from __future__ import annotations

import zlib

import pytest

from fake_node import PID
from rank_profiles import recorded_snapshot, steady_profile
from rank_windows import recording
from tidegauge.analysis.profile.apart import profile_apart

SAID = recording(PID, boundaries_us=(), owned=(), roots=None)
CONTENT = zlib.decompress(recorded_snapshot())


def test_a_profile_made_apart_is_the_same() -> None:
    assert profile_apart(SAID, CONTENT) == steady_profile()


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
