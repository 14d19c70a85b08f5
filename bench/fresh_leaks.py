"""How often is the evidence right? Runs the programs of bench/fresh_programs under a whole service, and compares.

    python bench/fresh_leaks.py OUT                                  # on the rig: all programs, steps of 0.1 s
    python bench/fresh_leaks.py OUT --step-seconds 10 --until evidence --minutes 30 --only lists_of_ranks at_exit
    python bench/fresh_leaks.py OUT --on gpu --at-once 20            # on a machine with a GPU; needs no Ray and no SQL

Each program is copied out of the checkout first, so that its code is the user's. What is true stands in the program:
``# LEAK`` marks the lines that allocate what is kept, ``# CALLER`` their callers, and ``TRUTH`` has words for the
holder (one of them must occur in the path) and the causes that are right; ``TRUTH = None`` is a healthy program.
bench/watched_programs.py has the words of the table.

A program that steps no optimizer (evolution_strategy) is judged after five minutes: give it --steps 4000.

Prints a table; OUT gets ``fresh_leaks.json`` with all of it and the programs' output.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watched_programs import (
    SIN,
    Program,
    Result,
    Truth,
    copy_logs,
    place_on,
    run_all,
    scratch_on,
    summary_of,
    table_of,
    write,
)

PROGRAMS = Path(__file__).with_name("fresh_programs")
HELPER = "loop"


def truth_of(path: Path) -> Truth:
    source = path.read_text(encoding="utf-8")
    said = next(
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "TRUTH"
    )
    if said is None:
        return Truth(path.stem, healthy=True)
    marked = {
        mark: frozenset(f"{path.name}:{at}" for at, line in enumerate(source.splitlines(), 1) if f"# {mark}" in line)
        for mark in ("LEAK", "CALLER")
    }
    assert marked["LEAK"], path
    return Truth(path.stem, False, marked["LEAK"], marked["CALLER"], tuple(said["holder"]), tuple(said["cause"]))


def last_words(said: str) -> Mapping[str, Any] | None:
    own = [line for line in said.splitlines() if line.startswith('{"steps"')]
    return json.loads(own[-1]) if own else None


def programs_of(args: argparse.Namespace, scratch: Path) -> list[Program]:
    folder = scratch / "project"
    shutil.copytree(PROGRAMS, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    place = place_on(args.on)
    flags = ["--steps", str(args.steps), "--step-seconds", str(args.step_seconds)]
    return [
        Program(truth_of(path), [place.python, str(path), *flags], folder, place.environ, last_words)
        for path in sorted(folder.glob("*.py"))
        if path.stem != HELPER and (args.only is None or re.search("|".join(args.only), path.stem))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for fresh_leaks.json and the programs' output")
    parser.add_argument("--on", choices=("rig", "gpu"), default="rig")
    parser.add_argument("--torch", metavar="VERSION", help="on the rig of that release, such as 2.11.0")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="programs whose names contain one of these")
    parser.add_argument("--steps", type=int, default=450)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--at-once", type=int, default=5, help="programs at a time (default 5)")
    parser.add_argument(
        "--until", choices=("incident", "evidence"), default="incident",
        help="a leaking program ends when its incident has evidence, or when there is evidence",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=30.0, help="of the whole run; what is left then is ended")
    args = parser.parse_args()
    about = {"on": args.on, "torch": args.torch, "step_seconds": args.step_seconds}

    def keep(results: Sequence[Result]) -> None:
        write(args.out / "fresh_leaks.json", about, results)

    with scratch_on(args.on, args.torch, devices=1) as scratch:
        began_s = time.monotonic()
        args.out.mkdir(parents=True, exist_ok=True)
        results = run_all(
            programs_of(args, scratch), scratch, at_once=args.at_once, minutes=args.minutes, until=args.until, each=keep
        )
        copy_logs(scratch, args.out)
    counts = summary_of(results)
    print(table_of(results))
    print(", ".join(f"{count} {word}" for word, count in counts.items()), f"in {time.monotonic() - began_s:.0f} s")
    return 1 if counts[SIN] else 0


if __name__ == "__main__":
    sys.exit(main())
