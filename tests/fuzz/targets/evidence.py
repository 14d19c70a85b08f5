"""What a hostile rank writes beside its ring: the JSON of its findings, and the snapshots of its window."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from random import Random

from fuzz.oracles import require
from fuzz.target import Target
from rank_windows import window
from tidegauge.agent.evidence.checks import MAX_ROWS, MAX_UNPACKED_BYTES, read_evidence, read_snapshot
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.analysis.untrusted_files import decompressed
from tidegauge.core.bounded import LARGEST
from tidegauge.core.evidence.rank_evidence import MAX_HOLDERS, MAX_TEXT_CHARS
from tidegauge.core.ids import ProcessId
from tidegauge.core.wire import to_json, to_wire

DATA = Path(__file__).parents[2] / "data" / "snapshots"
CLAIMED = ProcessId(4711, 815)


def found(data: bytes) -> None:
    """Only ``UnsafeFileError``; every number bounded, every text a short line; written and read again it is the
    same."""
    try:
        evidence = read_evidence(data, CLAIMED)
    except UnsafeFileError:
        return
    _bounded(to_wire(evidence))
    require(evidence.search is None or len(evidence.search.holders) <= MAX_HOLDERS, "more holders than are read")
    require(read_evidence(to_json(evidence), CLAIMED) == evidence, "it does not come back as it was")


def _bounded(value: object) -> None:
    if isinstance(value, str):
        require(
            len(value) <= MAX_TEXT_CHARS and value.isprintable(), f"a text of {len(value)} characters, or not printable"
        )
    elif isinstance(value, (int, float)):
        require(0 <= value <= LARGEST, "a number beyond all measure")
    elif isinstance(value, dict):
        for name, part in value.items():
            _bounded(name)
            _bounded(part)
    elif isinstance(value, list):
        for part in value:
            _bounded(part)


def snapshot(data: bytes) -> None:
    try:
        content, packed = read_snapshot(data)
    except UnsafeFileError:
        return
    require(len(content) <= MAX_UNPACKED_BYTES, f"{len(content):,} bytes")
    require(len(packed.frames["line"]) <= MAX_ROWS["frames"], "more frames than are read")


def _packed_again(data: bytes, random: Random) -> bytes:
    """Changed behind the compression rather than in it."""
    try:
        content = bytearray(decompressed(data, most_bytes=1 << 18))
    except Exception:  # damaged: it stays so
        return data
    for _ in range(random.choice((1, 1, 2, 8))):
        if content:
            content[random.randrange(len(content))] = random.randrange(256)
    return zlib.compress(bytes(content), 1)


def _windows() -> Iterable[bytes]:
    yield to_json(window(CLAIMED))
    yield b'{"began_unix_s": 1e400}'
    yield b"[]"


def _snapshots() -> Iterable[bytes]:
    for path in sorted(DATA.glob("*.snap.zst"), key=lambda path: path.stat().st_size)[:3]:
        yield zlib.compress(decompressed(path.read_bytes()))


_WORDS = (
    b'"holders":[', b'"kind":"container"', b"null", b"NaN", b"-1", b"1e999", b"9" * 400, b"0." + b"9" * 40, b"\\ud800",
    b"\\u202e", b"true", b"[" * 500, b'"early_file":"4711-815.early.snap"', b'"evidence_id":"x"', b'"search":{',
    b'"began_step":', b'"device":', b"{}", b"\\n", b"1152921504606846977",
)  # fmt: skip
EVIDENCE = Target(found, lambda: list(_windows()), words=_WORDS)
SNAPSHOT = Target(snapshot, lambda: list(_snapshots()), _packed_again, (zlib.compress(b""),), most_bytes=1 << 20)
