"""What a snapshot may be, and what no file gets by with: every hostile pickle is proven to have done nothing."""

from __future__ import annotations

import contextlib
import copyreg
import gzip
import io
import os
import pickle
import pickletools
import struct
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.bad_traces import BadTraceError, RefusedPickleError
from tidegauge.analysis.snapshots.restricted_pickle import loads
from tidegauge.analysis.untrusted_files import MAX_CONTENT_BYTES, MIN_UNZIPPED_LIMIT_BYTES, read_content

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=8)
        | st.dictionaries(st.text(), inner, max_size=8)
        | st.tuples(inner, inner)
        | st.tuples(inner)
    ),
    max_leaves=40,
)


def load(stream: BinaryIO, *, most_bytes: int = MAX_CONTENT_BYTES) -> object:
    return loads(read_content(stream, most_bytes=most_bytes))


@given(PLAIN, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_objects_come_back(plain: object, protocol: int) -> None:
    # Protocol 2 has no bytes: Python 3 writes a call of codecs.encode instead, which is refused.
    plain = plain if protocol > 2 else _without_bytes(plain)
    assert load(io.BytesIO(pickle.dumps(plain, protocol))) == plain


@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_the_text_protocols_are_read(plain: object) -> None:
    assert all(
        load(io.BytesIO(pickle.dumps(_with_short_numbers(plain), p))) == _with_short_numbers(plain) for p in (0, 1)
    )


@given(PLAIN)
def test_a_pickle_that_is_cut_off_is_never_an_object(plain: object) -> None:
    whole = pickle.dumps(plain)
    for length in range(len(whole)):
        with pytest.raises(BadTraceError):
            load(io.BytesIO(whole[:length]))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_an_error_of_ours(content: bytes) -> None:
    with contextlib.suppress(BadTraceError):
        load(io.BytesIO(b"\x80\x04" + content))


def test_shared_objects_stay_shared_and_may_hold_themselves() -> None:
    shared: list[object] = []
    shared.append(shared)
    both = load(io.BytesIO(pickle.dumps([shared, shared])))
    assert isinstance(both, list)
    assert both[0] is both[1] is both[0][0]


def test_a_million_pairs_of_numbers_are_no_reason_to_refuse() -> None:
    pools = [(number, 0) for number in range(50_000)]
    assert load(io.BytesIO(pickle.dumps(pools))) == pools


class Touch:
    """Makes a folder when it is unpickled: the proof that something was carried out."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self._path),))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_function_is_refused_by_name_and_not_called(tmp_path: Path, protocol: int) -> None:
    hostile = pickle.dumps({"segments": [Touch(tmp_path / "touched")]}, protocol)
    with pytest.raises(RefusedPickleError, match=r"wants (posix|nt|os)\.mkdir"):
        load(io.BytesIO(hostile))
    assert not (tmp_path / "touched").exists()
    pickle.loads(hostile)  # the same bytes do it where nobody stops them
    assert (tmp_path / "touched").exists()


def test_harmless_looking_types_are_refused_as_well() -> None:
    for odd, name in ((Fraction(1, 2), "fractions.Fraction"), (Path("x"), "pathlib"), (1j, "builtins.complex")):
        with pytest.raises(RefusedPickleError, match=name):
            load(io.BytesIO(pickle.dumps([odd])))


def test_the_name_in_the_message_is_one_printable_line() -> None:
    hostile = b"\x80\x04\x8c\x0bos\n\x1b[31mred\x8c\x06system\x93."
    with pytest.raises(RefusedPickleError) as refused:
        load(io.BytesIO(hostile))
    assert str(refused.value).isprintable()


def test_the_extension_registry_is_not_reached() -> None:
    copyreg.add_extension("builtins", "exec", 200)
    try:
        by_name = b"\x80\x02\x82\xc8."
        assert pickle.loads(by_name) is exec  # which also puts it into the cache, where find_class is not asked again
        with pytest.raises(RefusedPickleError, match="extension registry"):
            load(io.BytesIO(by_name))
    finally:
        copyreg.remove_extension("builtins", "exec", 200)


@pytest.mark.parametrize(
    ("hostile", "what"),
    [
        (b"(S'x'\nibuiltins\nlist\n.", "instance"),
        (b"(cbuiltins\nlist\no.", r"builtins\.list"),
        (b"\x80\x02cbuiltins\ndict\n)\x81.", r"builtins\.dict"),
        (b"\x80\x04)}\x92.", "instance"),
        (b"\x80\x02N}b.", "state"),
        (b"P123\n.", "persistent"),
        (b"\x80\x02K\x01Q.", "persistent"),
        (b"\x80\x05\x97.", "buffer"),
        (b"\x80\x05N\x98.", "buffer"),
        (b"\x80\x04\x8f.", "set"),
        (b"\x80\x04(\x91.", "frozenset"),
        (b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00x.", "bytearray"),
        (b"\x80\x02N)R.", "call"),
    ],
)
def test_each_opcode_that_does_more_than_plain_data_is_refused(hostile: bytes, what: str) -> None:
    with pytest.raises(RefusedPickleError, match=what):
        load(io.BytesIO(hostile))


def test_every_opcode_of_the_language_is_either_plain_or_refused() -> None:
    """None that a later Python adds gets through unseen: it is no opcode here."""
    refused = set("iobRPQ\x81\x82\x83\x84\x8f\x90\x91\x92\x96\x97\x98")
    for opcode in pickletools.opcodes:
        if opcode.code in refused:
            with pytest.raises(RefusedPickleError):
                load(io.BytesIO(opcode.code.encode("latin-1")))
        else:
            with pytest.raises(BadTraceError):  # each alone lacks what it needs
                load(io.BytesIO(opcode.code.encode("latin-1")))


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo of two thousand million places
        b"\x80\x02Np2000000000\n.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",  # a tebibyte of bytes
        b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b".",
        b"\x80\x04B\xff\xff\xff\xff.",
        b"\x80\x04X\xff\xff\xff\xff.",
        b"\x80\x02T\xff\xff\xff\x7f.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 50) + b".",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02\x8b\x00\x10\x00\x00" + b"\x7f" * 4096 + b".",  # a number of 10,000 digits
        b"I" + b"9" * 100_000 + b"\n.",
        b"}" * 2_000_000 + b".",  # 64 bytes of memory for each one
        b"(" * 10 + b"]" * 2_000_000 + b".",
    ],
)
def test_a_small_file_cannot_ask_for_much_memory(bomb: bytes) -> None:
    with pytest.raises(BadTraceError):
        load(io.BytesIO(bomb))


def test_tuples_nested_deeply_never_reach_the_hash_that_would_end_the_process() -> None:
    nested = b"\x80\x02}" + b")" + b"\x85" * 1_000_000 + b"Ns."
    with pytest.raises(RefusedPickleError, match="tuples"):
        load(io.BytesIO(nested))


def test_lists_nested_deeply_are_only_lists() -> None:
    depth = 90_000
    nested = load(io.BytesIO(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."))
    assert isinstance(nested, list)


def test_a_zip_bomb_stops_at_the_limit() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(BadTraceError, match=r"unzips from .* to more than 1\.0 MiB"):
        load(io.BytesIO(bomb), most_bytes=1 << 20)


def test_gzip_is_known_by_its_first_bytes_and_may_be_joined() -> None:
    whole = pickle.dumps({"a": 1})
    zipped = gzip.compress(whole[:5]) + gzip.compress(whole[5:])
    assert load(io.BytesIO(zipped)) == {"a": 1}
    with pytest.raises(BadTraceError, match="middle of its gzip"):
        load(io.BytesIO(zipped[:-12]))


def test_a_file_that_is_too_long_is_not_read_on() -> None:
    with pytest.raises(BadTraceError, match="longer than 16 B"):
        load(io.BytesIO(bytes(1000)), most_bytes=16)


def _without_bytes(plain: Any) -> Any:
    if isinstance(plain, bytes):
        return len(plain)
    if isinstance(plain, dict):
        return {key: _without_bytes(value) for key, value in plain.items()}
    return type(plain)(map(_without_bytes, plain)) if isinstance(plain, (list, tuple)) else plain


def _with_short_numbers(plain: Any) -> Any:
    if isinstance(plain, int):
        return plain % 2**100
    if isinstance(plain, dict):
        return {key: _with_short_numbers(value) for key, value in plain.items()}
    return list(map(_with_short_numbers, plain)) if isinstance(plain, list) else plain


def test_bomb_is_refused_by_what_it_becomes_beside_its_own_size() -> None:
    bomb = gzip.compress(bytes(MIN_UNZIPPED_LIMIT_BYTES + 1))
    with pytest.raises(BadTraceError, match=r"unzips from \d+\.\d KiB to more than 256\.0 MiB"):
        read_content(io.BytesIO(bomb))
