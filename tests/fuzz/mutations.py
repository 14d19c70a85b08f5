"""Changes to an input that libFuzzer does not make by itself: repeats, which show what takes more than linear time, and
checksums that are right again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from fuzz.target import Target

Mutate = Callable[[bytes, int], bytes]
"""libFuzzer's own: bytes and the greatest length in, other bytes out."""


MAX_SEEDS = 4
"""That are stretched."""


def mutator(target: Target, mutate: Mutate) -> Callable[[bytes, int, int], bytes]:
    """``custom_mutator`` of ``atheris.Setup``."""

    def changed(data: bytes, most_bytes: int, seed: int) -> bytes:
        random = Random(seed)
        what = random.randrange(32)
        if what == 0 and data:
            new = repeated(data, most_bytes, random)
        elif what < 6 and target.words:
            new = with_word(data, target.words, random)
        else:
            new = mutate(data, most_bytes)
        if target.mend is not None and random.randrange(8):
            new = target.mend(new, random)
        return new[:most_bytes]

    return changed


def stress(target: Target) -> Iterator[bytes]:
    """Each word, and pieces of each seed, over and over until there is no more room: what takes more than linear time
    is found here, and not when a fuzzer happens to come by."""
    seeds = [seed for seed in target.seeds() if seed]
    for word in (*target.words, b"\n", b" ", b"\0", b"["):
        yield filled(word, target.most_bytes)
        yield filled(word + b"\n", target.most_bytes)
        yield from (seed + filled(word, target.most_bytes - len(seed)) for seed in seeds[:1])
    for seed in seeds[:MAX_SEEDS]:
        yield filled(seed, target.most_bytes)
        for parts in (3, 40):
            step = max(len(seed) // parts, 1)
            for at in list(range(0, len(seed), step))[:parts]:
                yield seed[:at] + filled(seed[at : at + step], target.most_bytes - len(seed)) + seed[at:]


def filled(piece: bytes, room: int) -> bytes:
    return piece * (max(room, 0) // len(piece))


def repeated(data: bytes, most_bytes: int, random: Random) -> bytes:
    """A piece of ``data``, many times, in its place."""
    begin = random.randrange(len(data))
    end = min(len(data), begin + random.choice((1, 2, 8, 32, 64, 256)))
    times = random.choice((2, 10, 1_000, 100_000))
    room = max(most_bytes - len(data), 0)
    piece = data[begin:end]
    return data[:begin] + piece * min(times, room // len(piece) + 1) + data[end:]


def with_word(data: bytes, words: tuple[bytes, ...], random: Random) -> bytes:
    """One of ``words``, put in or put over what was there."""
    at = random.randrange(len(data) + 1)
    word = random.choice(words)
    return data[:at] + word + data[at + (len(word) if random.randrange(2) else 0) :]
