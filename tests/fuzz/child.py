"""One target in a process of its own: libFuzzer never returns, and what an input breaks stays in here.

``python -m fuzz.child NAME [libFuzzer's options and folders]`` fuzzes; ``python -m fuzz.child NAME --replay [FILE …]``
gives it these files, or all seeds and the kept corpus, without atheris; ``--seeds FOLDER`` writes the seeds there.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from fuzz.mutations import mutator, stress
from fuzz.oracles import prepared
from fuzz.target import Target, kept, load

STRESS_S = 4.0
"""Processor time for stretched inputs; most targets need less for all of theirs."""
PRODUCT = ("tidegauge", "tidegauge_exporter", "tidegauge_scheduler_hooks")


def _without_numba() -> None:
    """The allocator's model as it is interpreted: numba cannot compile what has instruments in it."""
    sys.modules["numba"] = None  # type: ignore[assignment] # SAFETY: how Python marks what cannot be imported


def replay(name: str, files: list[Path]) -> int:
    """Returns how many inputs there were. What the target raises goes through, under the name of the file."""
    target = load(name)
    guarded = prepared(target)
    for path in files or kept(name):
        data = path.read_bytes()
        try:
            guarded(data)
        except BaseException:
            print(f"{path}: {len(data):,} bytes: a finding", file=sys.stderr)
            raise
    seeds = [] if files else list(target.seeds())
    for seed in seeds:
        guarded(seed)
    return len(files or kept(name)) + len(seeds)


def fuzz(name: str, options: list[str]) -> None:
    """Never returns. Exits 0 when the time is over, another code with the input in a file when something was found."""
    import atheris  # type: ignore[import-untyped] # SAFETY: it has no types

    with atheris.instrument_imports(include=list(PRODUCT)):
        target = load(name)
    guarded = prepared(target)
    if "-merge=1" not in options:
        _stress(name, target, guarded, options)
    random.seed(0)  # what a reader decides by chance is the same again when the input is replayed
    arguments = [f"fuzz.{name}", f"-max_len={target.most_bytes}", "-len_control=50", *options]
    # Looked up at each call: Setup puts another function there.
    mutate = mutator(target, lambda data, most_bytes: bytes(atheris.Mutate(data, most_bytes)))
    atheris.Setup(arguments, guarded, custom_mutator=mutate)
    atheris.Fuzz()


def _stress(name: str, target: Target, guarded: Callable[[bytes], None], options: list[str]) -> None:
    """What libFuzzer would hardly make; an input that is a finding is kept as it keeps its own."""
    prefix = next((one.partition("=")[2] for one in options if one.startswith("-artifact_prefix=")), "")
    inputs = list(stress(target))
    random.Random(name).shuffle(inputs)  # where there is no time for all, some of each kind
    until_s, count = time.process_time() + STRESS_S, 0
    for data in inputs:
        if time.process_time() > until_s:
            break
        count += 1
        try:
            guarded(data)
        except BaseException:
            path = Path(f"{prefix}stress-{hashlib.sha1(data, usedforsecurity=False).hexdigest()}")
            path.write_bytes(data)
            traceback.print_exc()
            print(f"{name}: a stretched input is a finding: {path}", file=sys.stderr)
            raise SystemExit(77) from None
    print(f"stat::stretched_inputs: {count}", file=sys.stderr)


def main() -> None:
    name, *rest = sys.argv[1:]
    _without_numba()
    if rest[:1] == ["--seeds"]:
        for number, seed in enumerate(load(name).seeds()):
            Path(rest[1], f"seed-{number}").write_bytes(seed)
    elif rest[:1] == ["--replay"]:
        print(f"{name}: {replay(name, [Path(file) for file in rest[1:]])} inputs")
    else:
        fuzz(name, rest)


if __name__ == "__main__":
    main()
