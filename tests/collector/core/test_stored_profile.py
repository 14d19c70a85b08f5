"""Memory profiles as bytes: small, the same when read back, and nothing else is read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rank_profiles import advised_profile, rank_profile, steady_profile
from tidegauge.core import wire
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.stored_profile import (
    MAX_LINES,
    MAX_PACKED_BYTES,
    MAX_UNPACKED_BYTES,
    SMALLER_LINES,
    pack_profile,
    unpack_profile,
)


def packed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """A profile with a change to its JSON."""
    raw = json.loads(zlib.decompress(pack_profile(steady_profile())))
    change(raw)
    return zlib.compress(json.dumps(raw).encode())


def test_a_profile_is_small_and_reads_back_the_same() -> None:
    content = pack_profile(steady_profile())
    assert len(content) < 10_000
    assert unpack_profile(content) == steady_profile()


def test_lines_beyond_the_limit_are_summed_up_by_category() -> None:
    line = steady_profile().lines[0]._replace(held_bytes=1 << 10, blocks=1, caller=None)
    code = [CodeLine(f"/{n:x}{hash(str(n)):x}/{'long' * 80}.py", n, f"f{n}") for n in range(20_000)]
    many = [line._replace(line=one, category=category) for one in code for category in (line.category, Category.OTHER)]
    peak = steady_profile().peak._replace(
        allocated_bytes=40_000 << 10, by_category={line.category: 20_000 << 10, Category.OTHER: 20_000 << 10}
    )
    content = pack_profile(replace(steady_profile(), lines=tuple(many), peak=peak))
    assert len(content) <= MAX_PACKED_BYTES
    found = unpack_profile(content)
    assert len(found.lines) <= MAX_LINES + 2
    assert sum(one.held_bytes for one in found.lines) == 40_000 << 10
    assert [(one.line, one.blocks, one.held_bytes) for one in found.lines[-2:]] == [
        (SMALLER_LINES, 19_500, 19_500 << 10)
    ] * 2


def test_texts_of_a_job_are_made_printable_and_short() -> None:
    line = steady_profile().lines[0]._replace(line=CodeLine("\x1b[2J" + "x" * 10_000, 1, "a\nb"))
    found = unpack_profile(pack_profile(replace(steady_profile(), lines=(line, *steady_profile().lines[1:]))))
    assert found.lines[0].line == CodeLine("?[2J" + "x" * (MAX_TEXT_CHARS - 4), 1, "a?b")


def test_a_phase_that_a_later_version_added_is_unknown() -> None:
    assert unpack_profile(packed(lambda raw: raw["peak"].update(phase="lunch"))).peak.phase is StepPhase.UNKNOWN


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        zlib.compress(b"[" * 100_000),
        zlib.compress(b"null"),
        zlib.compress(b"{}"),
        pack_profile(steady_profile())[:-10],
        zlib.compress(b" " * (MAX_UNPACKED_BYTES + 1)),
        b"x" * (MAX_PACKED_BYTES + 1),
        packed(lambda raw: raw.update(version=2)),
        packed(lambda raw: raw.pop("peak")),
        packed(lambda raw: raw.update(events=1 << 70)),
        packed(lambda raw: raw.update(events="many")),
        packed(lambda raw: raw["peak"].update(allocated_bytes=-2)),
        packed(lambda raw: raw["peak"].update(phase=1)),
        packed(lambda raw: raw["peak"]["by_category"].update(parameters=5)),
        packed(lambda raw: raw["peak"]["by_category"].update(parameters=-1)),
        packed(lambda raw: raw["lines"].pop()),
        packed(lambda raw: raw["lines"].extend(raw["lines"] * 1000)),
        packed(lambda raw: raw["timeline"]["events"].pop()),
        packed(lambda raw: raw["timeline"]["events"].reverse()),
        packed(lambda raw: raw["timeline"].update(by_category={"parameters": [1] * 9})),
    ],
)
def test_nothing_else_is_read(content: bytes) -> None:
    with pytest.raises(ValueError, match="profile"):
        unpack_profile(content)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=8,
)


@given(st.data())
def test_whatever_stands_in_a_profile_it_is_refused_or_bounded(data: st.DataObject) -> None:
    def change(raw: dict[str, Any]) -> None:
        at: Any = raw
        while True:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.booleans()):
                break
            at = at[key]
        at[key] = data.draw(ANYTHING)

    try:
        found = unpack_profile(packed(change))
    except ValueError:
        return
    assert unpack_profile(pack_profile(found)) == found


def test_a_profile_of_a_rank_goes_over_the_wire_and_gives_back_the_whole() -> None:
    again = wire.from_wire(type(rank_profile()), json.loads(wire.to_json(rank_profile())))
    assert again == rank_profile()
    assert again.profile() == steady_profile()
    assert again.by_category == steady_profile().peak.by_category


def test_a_profile_of_an_older_agent_is_read_without_what_that_did_not_know() -> None:
    def older(raw: dict[str, Any]) -> None:
        del raw["advice"]

    assert unpack_profile(packed(older)) == steady_profile()
    raw = json.loads(wire.to_json(rank_profile()))
    for name in ("world_size", "process_outside_bytes", "other_processes_bytes", "other_jobs_bytes"):
        del raw[name]
    assert wire.from_wire(type(rank_profile()), raw) == rank_profile()


def test_an_older_reader_passes_over_what_it_does_not_know() -> None:
    assert unpack_profile(packed(lambda raw: raw.update(of_a_newer_agent=[1]))) == steady_profile()


def test_advice_is_kept_and_bounded() -> None:
    advised = advised_profile(ranks=8, limit_bytes=80 << 30)
    content = pack_profile(advised)
    assert len(content) < 10_000
    assert unpack_profile(content) == advised
    assert advised.advice is not None
    many = replace(advised, advice=replace(advised.advice, measures=advised.advice.measures * 9))
    with pytest.raises(ValueError, match="too many measures"):
        unpack_profile(pack_profile(many))


@pytest.mark.parametrize("text", ["", "!!", "eNo="])
def test_what_is_no_profile_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="profile"):
        rank_profile(packed=text).profile()
