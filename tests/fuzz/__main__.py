"""``python -m fuzz``: every target for a while, the kept corpus first, then the positive controls, then a table."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from fuzz.fuzzing import Outcome, fuzz_all
from fuzz.planted import BUGS, find
from fuzz.target import NAMES

API_SHARE = 0.2
"""Of the whole time, for the HTTP API by its own description, besides."""
CONTROL_S = 20.0
"""For each planted bug, at most: it ends as soon as the bug is found."""


def main() -> int:
    options = _options()
    if options.replay:
        name, *files = options.replay
        return subprocess.run([sys.executable, "-m", "fuzz.child", name, "--replay", *files], check=False).returncode
    if importlib.util.find_spec("atheris") is None:
        print(
            "fuzzing needs atheris, which has no build for this Python: make fuzz installs it where there is one",
            file=sys.stderr,
        )
        return 2
    began_s = time.monotonic()
    names = options.only or NAMES
    print(
        f"{len(names)} targets in {options.seconds:.0f} s, {options.jobs} at a time, seed {options.seed}",
        file=sys.stderr,
    )
    outcomes = _told(names, options)
    controls = [] if options.only else [_control(number, options.seed) for number in range(len(BUGS))]
    print(table(outcomes, controls), f"\n{time.monotonic() - began_s:.0f} s in all", sep="")
    if options.json is not None:
        content = {"targets": [_plain(one) for one in outcomes], "controls": [_plain(one) for one in controls]}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    found = any(outcome.findings for outcome in outcomes)
    missed = any(not control.findings for control in controls)
    return 1 if found or missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together, controls besides (60)")
    parser.add_argument(
        "--only", action="append", choices=NAMES, metavar="NAME", help=f"of {', '.join(NAMES)}; may repeat"
    )
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time (2)")
    parser.add_argument("--seed", type=int, default=1, help="of libFuzzer; another one takes other ways (1)")
    parser.add_argument("--keep", action="store_true", help="take inputs that reached something new into the corpus")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument(
        "--replay", nargs="+", metavar=("NAME", "FILE"), help="give one target these files, or its corpus"
    )
    return parser.parse_args()


def _told(names: Sequence[str], options: argparse.Namespace) -> list[Outcome]:
    outcomes = []
    for outcome in fuzz_all(names, options.seconds, seed=options.seed, jobs=options.jobs, keep=options.keep):
        _tell(outcome)
        outcomes.append(outcome)
    if not options.only:
        outcomes.append(_described_api(max(options.seconds * API_SHARE, 5.0), options.seed))
        _tell(outcomes[-1])
    return outcomes


def _described_api(seconds: float, seed: int) -> Outcome:
    """In this process, which is not limited; imported late, for schemathesis takes seconds to be there."""
    from fuzz.described_api import fuzz_api

    return fuzz_api(seconds, seed=seed)


def _tell(outcome: Outcome) -> None:
    state = "a finding" if outcome.findings else "nothing found"
    print(f"{outcome.name}: {outcome.inputs:,} inputs, {state}", file=sys.stderr, flush=True)


def _control(number: int, seed: int) -> Outcome:
    outcome = find(BUGS[number], CONTROL_S, seed=seed)
    state = "found, as it has to be" if outcome.findings else "MISSED: fuzzing proves nothing here"
    print(f"{outcome.name}: {state}", file=sys.stderr, flush=True)
    return outcome


def _plain(outcome: Outcome) -> dict[str, object]:
    return {name: value for name, value in dataclasses.asdict(outcome).items() if name != "log"}


def table(outcomes: Sequence[Outcome], controls: Sequence[Outcome]) -> str:
    rows = [("target", "inputs", "inputs/s", "corpus", "coverage", "new", "findings")]
    rows += [
        (
            one.name, f"{one.inputs:,}", f"{one.inputs_per_s:,}", str(one.corpus), str(one.covered or "-"),
            str(one.new_coverage), str(len(one.findings)),
        )
        for one in outcomes
    ]  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"{one.name}: {'found' if one.findings else 'MISSED'} after {one.inputs:,} inputs" for one in controls]
    lines += [f"{one.name}: {said}" for one in outcomes for said in one.findings]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
