"""Nodes of neighbouring releases understand each other: recorded messages, and those of a release of tomorrow."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from protocol_forms import RECORDED, Forms, described, full, packed, taken_apart, unpacked
from tidegauge.core.evidence.brief import EvidenceCause
from tidegauge.core.orders import OrderTo
from tidegauge.core.views import NodeSummary
from tidegauge.core.wire import UNKNOWN_MEMBER
from tidegauge.protocol.coding import ProtocolError, Received, ReportRefusedError, decode, encode
from tidegauge.protocol.messages import (
    MAY_LACK_ITEMS,
    MESSAGES,
    VERSION,
    ProtocolVersion,
    ReportRefusal,
    ReportReply,
    understands,
)

HOW = (
    "The messages between nodes changed. A field may be added with a default, a member to an enum: raise the minor of"
    " VERSION once in a release, then record it: PYTHONPATH=collector:tests .venv/bin/python tests/protocol_forms.py."
    " All else breaks nodes of the release before (docs/upgrade.md)"
)
NEXT = ProtocolVersion(VERSION.major, VERSION.minor + 1)


def recorded() -> Iterator[tuple[ProtocolVersion, Path]]:
    for folder in sorted(RECORDED.iterdir()):
        if folder.is_dir():
            major, minor = folder.name.split(".")
            yield ProtocolVersion(int(major), int(minor)), folder


UNDERSTOOD = [(version, folder) for version, folder in recorded() if understands(version)]


def test_messages_of_this_version_are_recorded() -> None:
    """Also a field that was added, removed or renamed fails here."""
    folder = RECORDED / str(VERSION)
    assert folder.is_dir(), HOW
    assert described() == json.loads((folder / "forms.json").read_text()), HOW
    assert {path.stem for path in folder.glob("*.bin")} == set(MESSAGES), HOW
    for name, form in MESSAGES.items():
        data = (folder / f"{name}.bin").read_bytes()
        assert unpacked(data)[:2] == (VERSION, name)
        assert decode(form, data).message == full(form), HOW
        assert unpacked(encode(full(form)))[2] == unpacked(data)[2], HOW


def test_recorded_messages_say_every_field() -> None:
    """Fields that have their default are not sent."""
    for name, form in MESSAGES.items():
        assert_says_every_field(form, unpacked((RECORDED / str(VERSION) / f"{name}.bin").read_bytes())[2])


def assert_says_every_field(annotation: Any, raw: Any) -> None:
    kind, parts = taken_apart(annotation)
    if kind == "record":
        hints = get_type_hints(parts[0])
        assert raw.keys() == hints.keys(), parts[0].__name__
        for name, part in hints.items():
            assert_says_every_field(part, raw[name])
    elif kind == "optional":
        assert_says_every_field(parts[0], raw)
    elif kind not in ("scalar", "enum"):
        for each in raw.values() if kind == "mapping" else raw:
            assert_says_every_field(parts[-1], each)


def test_recorded_versions_are_this_one_and_the_one_before() -> None:
    assert [version for version, _ in UNDERSTOOD] == [VERSION._replace(minor=VERSION.minor - 1), VERSION]


@pytest.mark.parametrize(("version", "folder"), UNDERSTOOD, ids=lambda value: str(getattr(value, "name", value)))
def test_recorded_messages_are_read_with_all_that_they_say(version: ProtocolVersion, folder: Path) -> None:
    for name, form in MESSAGES.items():
        data = (folder / f"{name}.bin").read_bytes()
        received: Received[Any] = decode(form, data)
        assert received.left_out is None
        assert says_all_of(unpacked(encode(received.message))[2], unpacked(data)[2])


def says_all_of(now: Any, then: Any) -> bool:
    if isinstance(then, dict):
        return isinstance(now, dict) and all(name in now and says_all_of(now[name], then[name]) for name in then)
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(says_all_of, now, then))
    return bool(now == then)


def closed_enums() -> set[str]:
    """Enums of which a node refuses a whole message for the sake of a member that it does not know."""
    found: set[str] = set()
    todo: list[tuple[Any, bool]] = [(form, False) for form in MESSAGES.values()]
    while todo:
        annotation, may_be_none = todo.pop()
        kind, parts = taken_apart(annotation)
        if kind == "record":
            left_out: frozenset[str] = MAY_LACK_ITEMS.get(parts[0], frozenset())
            todo += [(part, False) for name, part in get_type_hints(parts[0]).items() if name not in left_out]
        elif kind == "enum" and not may_be_none and not hasattr(parts[0], UNKNOWN_MEMBER):
            found.add(parts[0].__name__)
        elif kind not in ("enum", "scalar"):
            todo += [(part, kind == "optional") for part in parts]
    return found


def broken(then: Forms, now: Forms, closed: Collection[str] = ()) -> list[str]:
    """What a message of one of ``then`` and ``now`` says and the other does not understand."""
    found = []
    for form, fields in then.items():
        today = now.get(form)
        if isinstance(fields, list) or isinstance(today, list) or today is None:
            members = today if isinstance(today, list) else []
            found += [f"{form}: {member} is gone" for member in fields if member not in members]
            found += [f"{form}: {member} is new" for member in members if form in closed and member not in fields]
            continue
        for name, words in fields.items():
            if name not in today:
                found.append(f"{form}.{name} is gone")
            elif today[name] != words:
                found.append(f"{form}.{name} was {words} and is {today[name]}")
        found += [f"{form}.{name} has no default" for name in today.keys() - fields.keys() if " = " not in today[name]]
    return found


@pytest.mark.parametrize(("version", "folder"), UNDERSTOOD, ids=lambda value: str(getattr(value, "name", value)))
def test_messages_only_gained_fields_with_defaults(version: ProtocolVersion, folder: Path) -> None:
    assert broken(json.loads((folder / "forms.json").read_text()), described(), closed_enums()) == [], HOW


def test_a_field_that_breaks_the_release_before_is_found() -> None:
    then: Forms = {"A": {"x": "int", "y": "optional of int = None"}, "E": ["a", "b"]}
    assert broken(then, {**then, "B": {"z": "int"}}) == []
    now: Forms = {"A": {"x": "str", "z": "int", "w": "int = 0"}, "E": ["b", "c"]}
    wrong = ["A.x was int and is str", "A.y is gone", "A.z has no default", "E: a is gone"]
    assert broken(then, now) == wrong
    assert broken(then, now, closed={"E"}) == [*wrong, "E: c is new"]
    assert closed_enums() == {"LeakState", "LaunchState"}


def with_news(annotation: Any, raw: Any) -> Any:
    """``raw`` as a later release may say it: an unknown field in every record."""
    kind, parts = taken_apart(annotation)
    if raw is None or kind in ("scalar", "enum"):
        return raw
    if kind == "record":
        hints = get_type_hints(parts[0])
        told = {name: with_news(hints[name], part) for name, part in raw.items()}
        return {"news": {"of": ["tomorrow", 1, None]}, **told}
    if kind == "optional":
        return with_news(parts[0], raw)
    if kind == "mapping":
        return {name: with_news(parts[1], part) for name, part in raw.items()}
    forms = parts if kind == "row" else parts * len(raw)
    return [with_news(form, part) for form, part in zip(forms, raw, strict=True)]


@pytest.mark.parametrize("name", MESSAGES)
def test_next_release_adds_fields_that_this_one_passes_over(name: str) -> None:
    form = MESSAGES[name]
    told = with_news(form, unpacked(encode(full(form)))[2])
    assert json.dumps(told).count("tomorrow") > 0
    received: Received[Any] = decode(form, packed(name, told, NEXT))
    assert received.message == full(form)
    assert received.left_out is None


def test_next_release_adds_members_that_become_unknown_or_absent() -> None:
    _, _, raw = unpacked(encode(full(NodeSummary)))
    raw["evidence"][0]["cause"]["cause"] = "weather"
    raw["ranks"][0]["verdict"] |= {"severity": "weather", "signal": "weather"}
    received = decode(NodeSummary, packed("report", raw, NEXT))
    assert received.message.evidence[0].cause.cause is EvidenceCause.UNKNOWN
    verdict = received.message.ranks[0].verdict
    assert (verdict.severity, verdict.signal) == (None, None)
    assert received.left_out is None


def test_an_order_of_the_next_release_that_this_one_cannot_carry_out_is_left_out_in_words() -> None:
    _, _, raw = unpacked(encode(full(ReportReply)))
    raw["orders"] = [{**raw["orders"][0], "to": "kernel"}, raw["orders"][0]]
    received = decode(ReportReply, packed("reply", raw, NEXT))
    (order,) = received.message.orders
    assert order.to is OrderTo.RANK
    assert received.left_out is not None
    assert "orders[0]: " in received.left_out
    assert "'kernel' where one of rank, launch belongs" in received.left_out


def test_a_new_type_of_message_is_refused_by_its_name() -> None:
    with pytest.raises(ProtocolError, match="'weather' came where a message 'report' belongs"):
        decode(NodeSummary, packed("weather", {}, NEXT))


@pytest.mark.parametrize(
    ("version", "older"),
    [
        (VERSION._replace(minor=VERSION.minor + 2), "this one"),
        (ProtocolVersion(VERSION.major + 1, 0), "this one"),
        (ProtocolVersion(VERSION.major - 1, 9), "that one"),
    ],
)
def test_two_releases_apart_is_refused_and_says_who_is_older(version: ProtocolVersion, older: str) -> None:
    with pytest.raises(ProtocolError, match=rf"speaks version {version} .*: {older} must be upgraded"):
        decode(NodeSummary, packed("report", unpacked(encode(full(NodeSummary)))[2], version))


def test_a_refusal_is_understood_from_any_version() -> None:
    with pytest.raises(ReportRefusedError, match="too old"):
        decode(ReportReply, packed("refusal", {"problem": "too old"}, ProtocolVersion(9, 9)))
    assert get_type_hints(ReportRefusal) == {"problem": str}, "it stays as it is in all versions"
