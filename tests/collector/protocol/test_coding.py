"""Messages between nodes as bytes: what comes back, and what hostile bytes come to."""

from __future__ import annotations

import math
import pickle
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol_forms import full, packed, taken_apart, unpacked
from tidegauge.core.views import NodeSummary
from tidegauge.protocol.coding import (
    HEADER,
    MAGIC,
    MAX_LEFT_OUT,
    MAX_TEXT_BYTES,
    MAX_VALUES,
    ProtocolError,
    Received,
    ReportRefusedError,
    decode,
    encode,
)
from tidegauge.protocol.messages import MAX_ITEMS, MESSAGES, VERSION, ReportRefusal, ReportReply

LARGEST_INT = (1 << 64) - 1
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)


def values(annotation: Any) -> st.SearchStrategy[Any]:
    """Any value of this type. A figure that may be absent is never infinite: that is written as an absence."""
    kind, parts = taken_apart(annotation)
    if kind == "scalar":
        return {
            str: TEXTS, bool: st.booleans(), int: st.integers(-LARGEST_INT, LARGEST_INT), Any: PLAIN,
            float: st.floats(allow_nan=False, allow_infinity=False) | st.just(math.inf),
        }[parts[0]]  # fmt: skip
    if kind == "enum":
        return st.sampled_from(list(parts[0]))
    if kind == "record":
        return st.builds(parts[0], **{name: values(part) for name, part in get_type_hints(parts[0]).items()})
    if kind == "optional":
        finite = st.floats(allow_nan=False, allow_infinity=False)
        return st.none() | (finite if parts[0] is float else values(parts[0]))
    if kind == "row":
        return st.tuples(*map(values, parts))
    if kind == "mapping":
        return st.dictionaries(values(parts[0]), values(parts[1]), max_size=2)
    items = st.lists(values(parts[0]), max_size=2)
    return items.map(frozenset) if kind == "set" else items.map(tuple)


@pytest.mark.parametrize("form", MESSAGES.values(), ids=MESSAGES)
def test_protocol_gives_back_every_message_as_it_was(form: type) -> None:
    @given(values(form))
    def comes_back(message: Any) -> None:
        received: Received[Any] = decode(form, encode(message))
        assert received.message == message
        assert received.left_out is None

    comes_back()


@pytest.mark.parametrize("form", MESSAGES.values(), ids=MESSAGES)
def test_protocol_gives_back_every_field(form: type) -> None:
    assert decode(form, encode(full(form))).message == full(form)


def raw_report(change: Callable[[Any], object]) -> Any:
    _, _, raw = unpacked(encode(full(NodeSummary)))
    change(raw)
    return raw


def refusal_of(data: object, form: type = NodeSummary) -> str:
    with pytest.raises(ProtocolError) as caught:
        decode(form, data)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw["ranks"][0].update(step="7"), "ranks[0].step: a str where an int belongs"),
        (lambda raw: raw["ranks"][0].update(alive=1), "ranks[0].alive: a int where a bool belongs"),
        (lambda raw: raw["ranks"][0].update(step=True), "ranks[0].step: a bool where an int belongs"),
        (lambda raw: raw["ranks"][0]["verdict"].update(state="gone"), "ranks[0].verdict.state: 'gone' where one of ok"),
        (lambda raw: raw["ranks"][0].update(identity=[1]), "ranks[0].identity: a list where an object belongs"),
        (lambda raw: raw["ranks"][0]["process"].pop("pid"), "missing 1 required positional argument: 'pid'"),
        (lambda raw: raw.update(sent_unix_s="now"), "sent_unix_s: a str where a float belongs"),
        (lambda raw: raw.update(agent_pid=1 << 64), "agent_pid: a number of more than 64 bits"),
        (lambda raw: raw.update(pods_wanted="abc"), "pods_wanted: a str where a list belongs"),
        (lambda raw: raw.update(launches={}), "launches: a dict where a list belongs"),
        (lambda raw: raw.update(hostname="x" * (1 << 21)), "hostname: a text of more than 1,048,576 characters"),
        (lambda raw: raw.pop("hostname"), "missing 1 required positional argument: 'hostname'"),
    ],
)
def test_protocol_refuses_a_wrong_value_and_names_its_place(change: Callable[[Any], object], words: str) -> None:
    assert words in refusal_of(packed("report", raw_report(change)))


def test_protocol_words_do_not_tell_the_value_of_a_wrong_field() -> None:
    def change(raw: Any) -> None:
        raw["ranks"][0]["step"] = "of ada"

    assert "ada" not in refusal_of(packed("report", raw_report(change)))


def text_of(text: bytes, *, said_bytes: int | None = None, name: bytes = b"report") -> bytes:
    length = len(text) if said_bytes is None else said_bytes
    return HEADER.pack(MAGIC, *VERSION, name, length) + zlib.compress(text)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (full(NodeSummary), "no message of the protocol"),
        (pickle.dumps(full(NodeSummary)), "no message of the protocol"),
        (b"", "no message of the protocol"),
        (MAGIC, "no message of the protocol"),
        (b"TGM2" + encode(full(ReportRefusal))[4:], "no message of the protocol"),
        (text_of(b"{}", said_bytes=0), "0 bytes"),
        (text_of(b"{}", said_bytes=MAX_TEXT_BYTES + 1), "where 1 to"),
        (text_of(b"{}", said_bytes=1), "not as long as its header says"),
        (text_of(b"{}", said_bytes=3), "not as long as its header says"),
        (text_of(b"{}") + b"x", "not as long as its header says"),
        (text_of(b"{}")[:-2], "not as long as its header says"),
        (HEADER.pack(MAGIC, *VERSION, b"report", 2) + b"{}", "cannot be decompressed"),
        (text_of(b"[" * 100_000), "not the JSON of a message"),
        (text_of(b"\xff\xfe"), "not the JSON of a message"),
        (text_of('{"a": 1}'.encode("utf-16")), "not the JSON of a message"),
        (text_of(b'{"node_id": NaN}'), "NaN is no number"),
        (text_of(b'{"node_id": "\\ud800"}'), "not the JSON of a message"),
        (text_of(b"1" * 5000), "not the JSON of a message"),
        (text_of(b"[]"), "a list where an object belongs"),
        (text_of(b"{}", name=b"os.system"), "'os.system' came where a message 'report' belongs"),
        (encode(full(ReportReply)), "'reply' came where a message 'report' belongs"),
    ],
)
def test_protocol_refuses_other_bytes_in_words(data: object, words: str) -> None:
    assert words in refusal_of(data)


def test_protocol_makes_little_of_a_message_that_claims_little() -> None:
    bomb = text_of(b" " * (64 << 20), said_bytes=100)
    assert len(bomb) < 1 << 17
    tracemalloc.start()
    try:
        refusal_of(bomb)
        _, highest_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert highest_bytes < 1 << 20


def test_protocol_counts_values_before_it_makes_them() -> None:
    text = b"[" + b"[]," * MAX_VALUES + b"[]]"
    tracemalloc.start()
    try:
        assert "more than 1048576 values" in refusal_of(text_of(text))
        _, highest_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert highest_bytes < 3 * len(text)


@pytest.mark.parametrize("name", sorted(MAX_ITEMS[NodeSummary]))
def test_protocol_counts_what_a_node_can_have_before_it_reads_it(name: str) -> None:
    """Millions of processes on a GPU took the coordinator seconds and hundreds of megabytes."""
    most = MAX_ITEMS[NodeSummary][name]
    raw = unpacked(encode(full(NodeSummary)))[2]
    listed, _, inner = name.partition(".")
    if inner:  # on two GPUs, as many on each as there may be on one
        gpu = {**raw[listed][0], inner: dict.fromkeys(map(str, range(most // 2 + 1)), 1)}
        raw[listed] = [gpu, gpu]
    else:
        raw[listed] = [0] * (most + 1)
    message = packed("report", raw)
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(ProtocolError, match=rf"^{name} has {most + (2 if inner else 1)} items, and a node can"):
            decode(NodeSummary, message)
    finally:
        sys.setprofile(before)
    assert calls < 1000  # and not one for each


def test_protocol_counts_every_list_of_a_report() -> None:
    lists = {name for name, form in get_type_hints(NodeSummary).items() if taken_apart(form)[0] in ("list", "mapping")}
    assert lists <= MAX_ITEMS[NodeSummary].keys()


def test_protocol_takes_a_text_with_an_escape_that_is_none() -> None:
    def change(raw: Any) -> None:
        raw["hostname"] = "C:\\ud800"

    assert decode(NodeSummary, packed("report", raw_report(change))).message.hostname == "C:\\ud800"


def test_protocol_sends_a_text_that_is_not_unicode_with_a_mark_in_it() -> None:
    assert decode(ReportRefusal, encode(ReportRefusal("a\ud800b"))).message.problem == "a?b"


def test_protocol_never_sends_what_no_receiver_takes() -> None:
    with pytest.raises(ProtocolError, match="larger than"):
        encode(ReportRefusal("x" * MAX_TEXT_BYTES))


def test_protocol_tells_a_refusal_in_the_words_of_the_other_side() -> None:
    with pytest.raises(ReportRefusedError, match=r"^it is too old\?$"):
        decode(ReportReply, encode(ReportRefusal("it is too old\n")))


def test_protocol_leaves_out_single_items_that_it_cannot_read_and_says_which() -> None:
    def change(raw: Any) -> None:
        holder = raw["evidence"][0]["search"]["holders"][0]
        holder["kind"] = "weather"
        raw["evidence"].append(unpacked(encode(full(NodeSummary)))[2]["evidence"][0])
        raw["profiles"][0]["by_category"] = {"weather": 1}

    received = decode(NodeSummary, packed("report", raw_report(change)))
    assert received.message.evidence == full(NodeSummary).evidence
    assert received.message.profiles == ()
    assert received.message.ranks == full(NodeSummary).ranks
    assert received.left_out is not None
    assert "evidence[0]: " in received.left_out
    assert "search.holders[0].kind: 'weather' where one of global" in received.left_out
    assert "by_category.weather: 'weather' where one of" in received.left_out


def test_protocol_refuses_a_message_with_more_unreadable_items_than_it_would_leave_out() -> None:
    """Ten kilobytes of them took the coordinator four seconds."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    raw = unpacked(encode(full(NodeSummary)))[2]
    message = packed("report", {**raw, "evidence": [0] * 4_000})
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with pytest.raises(
            ProtocolError, match=r"more than 1024 items of it cannot be read, as evidence\[0\]: "
        ) as error:
            decode(NodeSummary, message)
    finally:
        sys.setprofile(before)
    assert len(str(error.value)) < 1000
    assert calls < 50 * MAX_LEFT_OUT


def test_protocol_words_on_what_was_left_out_stay_few() -> None:
    def change(raw: Any) -> None:
        raw["evidence"] = [{"x": "y" * 5000}] * 1000

    received = decode(NodeSummary, packed("report", raw_report(change)))
    assert received.left_out is not None
    assert len(received.left_out) < 2000
    assert received.left_out.endswith(" and 996 more")
