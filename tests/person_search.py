"""Looks for words in every byte of every file below a folder, in what is compressed in them too."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

ZLIB_HEADS = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")


def places_of(words: Sequence[str], folder: Path) -> list[str]:
    """``FILE: WORD`` for each word in a file's name or content."""
    found = []
    for path in sorted(folder.rglob("*")):
        contents = [str(path.relative_to(folder)).encode()]
        if path.is_file():
            contents += _contents(path.read_bytes())
        said = {word for word in words for content in contents if word.encode() in content}
        found += [f"{path.relative_to(folder)}: {word}" for word in sorted(said)]
    return found


def _contents(raw: bytes) -> Iterator[bytes]:
    yield raw
    yield from _unpacked(raw)
    for text in _BASE64.findall(raw):
        if text.startswith((b"eJ", b"eN")):  # zlib in base64
            yield from _unpacked(base64.b64decode(text + b"=" * (-len(text) % 4)))


def _unpacked(raw: bytes) -> Iterator[bytes]:
    for head in ZLIB_HEADS:
        at = raw.find(head)
        while at >= 0:
            try:
                yield zlib.decompressobj().decompress(raw[at:])
            except zlib.error:
                yield b""
            at = raw.find(head, at + 1)
