"""What is written on workloads comes back as it was, and nothing else is believed."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge_scheduler_hooks.kubernetes.intents import (
    MAX_INTENT_BYTES,
    MAX_TEXT_CHARS,
    Changes,
    IncidentIntent,
    RequeueOrder,
    Stopped,
    decode_changes,
    decode_incident,
    decode_requeue,
    decode_stopped,
    encode,
    merged,
)

ORDER = RequeueOrder(
    "d-1", 2, "leaks", 1.5, "uid#0+0@", {"TIDEGAUGE_X": "1"}, {"expandable_segments": "True"}, "2.11.0"
)


def test_an_order_comes_back_as_it_was() -> None:
    assert decode_requeue(encode(ORDER)) == ORDER


def test_a_stop_comes_back_as_it_was() -> None:
    stopped = Stopped("d-1", "hold", "leaks", 1.5, "uid#0+0@")
    assert decode_stopped(encode(stopped)) == stopped


def test_an_incident_comes_back_as_it_was() -> None:
    incident = IncidentIntent("d-1", "uid#0+0@", "leaks 12 MiB a step", 1.5)
    assert decode_incident(encode(incident)) == incident


@given(st.text(st.characters(exclude_categories=())))
def test_an_incident_can_be_sent_whatever_its_text_repeats(text: str) -> None:
    with contextlib.suppress(ValueError):  # too long, of characters that take six bytes each
        encode(IncidentIntent("d-1", "m", text, 1.5)).encode()


def test_a_long_reason_is_cut() -> None:
    long = RequeueOrder("d-1", 2, "x" * 10_000, 1.5, "m")
    assert decode_requeue(encode(long)).reason == "x" * MAX_TEXT_CHARS


def test_intent_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than"):
        encode(Changes({f"TIDEGAUGE_{at}": "x" * 1000 for at in range(5)}))
    with pytest.raises(ValueError, match="longer than"):
        decode_changes(" " * (MAX_INTENT_BYTES + 1))


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 0}, {"attempt": True}, {"attempt": "2"}, {"attempt": 10**9}, {"reason": 1}, {"at": "now"},
        {"at": True}, {"mark": None}, {"environ": []}, {"environ": {"A": 1}}, {"alloc_conf": {"a": None}},
        {"environ": {"A": "\0"}}, {"torch_version": 2}, {"decision": "d" * 501},
        {"at": 10**400}, {"at": -(10**400)}, {"decision": "\ud800"}, {"environ": {"A": "\udfff"}}, {"more": "\ud800"},
    ],
)  # fmt: skip
def test_a_forged_order_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode_requeue(json.dumps({**json.loads(encode(ORDER)), **change}))


@pytest.mark.parametrize("text", ["", "[]", "1", "{", "[" * 4000, '{"at": NaN, "action": "hold"}', '{"action": "rm"}'])
def test_any_other_text_is_refused(text: str) -> None:
    for decode in (decode_requeue, decode_stopped):
        with pytest.raises(ValueError, match=r"\w"):
            decode(text)


@given(st.text())
def test_decoding_raises_nothing_but_value_errors(text: str) -> None:
    for decode in (decode_requeue, decode_stopped, decode_changes, decode_incident):
        with contextlib.suppress(ValueError):
            decode(text)


def test_later_changes_win_and_others_stay() -> None:
    before = Changes({"TIDEGAUGE_A": "1", "TIDEGAUGE_B": "1"}, {"x": "1"}, "2.10.0")
    after = merged(before, Changes({"TIDEGAUGE_B": "2"}, {"y": "2"}))
    assert after == Changes({"TIDEGAUGE_A": "1", "TIDEGAUGE_B": "2"}, {"x": "1", "y": "2"}, "2.10.0")
    assert not Changes()
    assert after
