"""Is danger told of the right jobs, and growth early enough? Prints Markdown.

    python bench/detector_danger.py                             # five minutes
    python bench/detector_danger.py --docs                      # and puts the table into docs/detector.md
    python bench/detector_danger.py --generator FILE --seeds 101 102 --view 1hz

Loops below a cap on GPUs (tests/data/series_wild), the series of other authors (tests/leakseries/other_authors), and
the families of tests/leakseries with a card that they nearly fill. ``--generator`` judges one more author's series: a
module with `corpus(seed, variants, set)` and `to_1hz(series)`, and beside it, if there is one, that author's own rule
`floorladder.py` (`run(series)`). Ranges are Wilson's 95 %
intervals.
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from detector_parameters import PAGE, between

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leakseries.corpus import FAMILIES, UNSEEN, make  # noqa: E402
from leakseries.machine import Row, feed, rows_of  # noqa: E402
from leakseries.other_authors import adversarial, typical, whole_jobs  # noqa: E402
from leakseries.recorded import WILD_CARDS, wild_recordings  # noqa: E402
from tidegauge.core.detector import RankDetector  # noqa: E402
from tidegauge.core.incidents.grades import wilson_interval  # noqa: E402
from tidegauge.core.verdicts import LeakState, Severity  # noqa: E402

HELD_OUT = range(1000, 1005)
FRESH = range(11, 14)
"""Seeds of other authors' series that were never in view."""
STEPS, STEP_S = 4000, 1.0
"""Of a series of our own: an hour."""
FULL = 0.9
"""Share of the card that a healthy series of our own takes at most."""
DAY_S = 86_400.0


class Run(NamedTuple):
    """One series whose truth is known."""

    family: str
    rows: Sequence[Row]
    limits: Sequence[int]
    """At each row."""
    leak: bool
    onset_s: float
    oom_s: float | None
    """When memory ran out; ``None``: it did not."""
    whole: Any = None
    """As its own author's rule wants it."""


class Told(NamedTuple):
    """When a rule spoke first; ``None``: never."""

    run: Run
    growing_s: float | None
    danger_s: float | None


def ours(run: Run) -> Told:
    detector, growing_s = RankDetector(), None
    for row, limit in zip(run.rows, run.limits):
        verdict = feed(detector, row, limit_bytes=limit)
        if verdict.state is LeakState.LEAK:
            growing_s = row.t if growing_s is None else growing_s
            if verdict.severity is Severity.CRITICAL:
                return Told(run, growing_s, row.t)
    return Told(run, growing_s, None)


def slope(run: Run) -> Told:
    """What alerts usually do: a line through the process's bytes, with R^2 of 0.6, that meets the limit within a day.
    Asked each time that the series is an eighth longer."""
    n = at = 0
    times = values = squares = crossed = t_squares = 0.0
    for row, limit in zip(run.rows, run.limits):
        n, t, value = n + 1, row.t, float(max(row.nvml_process, row.reserved))
        times, values, squares = times + t, values + value, squares + value * value
        crossed, t_squares = crossed + t * value, t_squares + t * t
        if n < max(32, at * 9 // 8):
            continue
        at = n
        across = t_squares - times * times / n
        along, total = crossed - times * values / n, squares - values * values / n
        if along <= 0 or total <= 0 or along * along / (across * total) < 0.6:
            continue
        if (limit - value) / (along / across) < DAY_S:
            return Told(run, t, t)
    return Told(run, None, None)


def recordings(card: str) -> Iterator[Run]:
    for run in wild_recordings(card):
        rows = run.series.rows
        limits = [run.limit_bytes(row) for row in rows]
        onset = rows[run.series.onset_step].t if run.series.onset_step else 0.0
        yield Run(run.series.family, rows, limits, run.series.leak, onset, run.oom_s)


def made_up(seeds: Iterable[int]) -> Iterator[Run]:
    """Leaks meet the card at two thirds of the series, healthy ones take nine tenths of it."""
    for family in (*FAMILIES, *UNSEEN):
        for seed in seeds:
            series = make(family, seed, STEPS, step_s=STEP_S)
            rows = series.rows
            need = [max(row.peak_allocated if series.signal in (None, "allocated") else row.reserved, row.allocated)
                    + max(row.nvml_process - row.reserved, 0) for row in rows]  # fmt: skip
            limit = max(need[: 2 * STEPS // 3]) if series.leak else int(max(need) / FULL)
            met = next((at for at, bytes_ in enumerate(need) if bytes_ > limit), None)
            onset = rows[series.onset_step or 0].t
            oom = None if met is None else rows[met].t
            yield Run(family, rows[:met], [limit] * len(rows), series.leak, onset, oom)


def of_generator(generator: ModuleType, seeds: Iterable[int], view: str, part: str = "core") -> Iterator[Run]:
    for seed in seeds:
        for one in generator.corpus(seed, 2, part):
            if one.label == -1 or one.ambiguous:
                continue
            series = generator.to_1hz(one) if view == "1hz" else one
            rows = rows_of(series)
            fatal = bool(series.meta["oom_in_series"])
            onset = 0.0 if math.isnan(series.onset) else float(series.onset)
            limits, oom = [int(series.capacity)] * len(rows), rows[-1].t if fatal else None
            yield Run(series.family, rows, limits, series.label == 1, onset, oom, series)


def ladder(run: Run) -> Told:
    """The other author's own rule."""
    alarms = importlib.import_module("floorladder").run(run.whole)
    first: dict[str, float] = {}
    for (_, tier), alarm in alarms.items():
        first[tier] = min(first.get(tier, math.inf), float(alarm.t))
    return Told(run, first.get("ticket"), first.get("page"))


def share(part: int, whole: int) -> str:
    """ "104 of 109 (95.4 %; 89.7 to 98.0)"."""
    if not whole:
        return "-"
    low, high = wilson_interval(part, whole)
    return f"{part} of {whole} ({100 * part / whole:.1f} %; {100 * low:.1f} to {100 * high:.1f})"


def table_row(name: str, rule: str, told: Sequence[Told]) -> list[str]:
    fatal = [one for one in told if one.run.leak and one.run.oom_s is not None]
    slow = [one for one in told if one.run.leak and one.run.oom_s is None]
    healthy = [one for one in told if not one.run.leak]
    right = [one for one in (*fatal, *slow) if is_after_onset(one.danger_s, one.run)]
    accused = sum(one.danger_s is not None for one in told) - len(right)
    saved = sum(is_after_onset(one.danger_s, one.run) for one in fatal)
    way = [
        (one.growing_s - one.run.onset_s) / (one.run.oom_s - one.run.onset_s)
        for one in fatal
        if one.growing_s is not None and one.run.oom_s is not None and is_after_onset(one.growing_s, one.run)
    ]
    return [
        name, rule, share(saved, len(fatal)), share(sum(one.danger_s is not None for one in healthy), len(healthy)),
        share(len(right), len(right) + accused),
        share(sum(one.growing_s is not None for one in healthy), len(healthy)),
        f"{statistics.median(way):.2f}" if way else "-",
    ]  # fmt: skip


def is_after_onset(told_s: float | None, run: Run) -> bool:
    return told_s is not None and told_s >= run.onset_s - 1e-9


HEADER = (
    "series", "rule", "leaks that ran out of memory: dangerous before", "healthy: dangerous at some time",
    "precision of dangerous", "healthy: growing at some time", "median share of the way at which growing was said",
)  # fmt: skip


def lines_of(sets: Iterable[tuple[str, list[Run], dict[str, Callable[[Run], Told]]]]) -> Iterator[str]:
    yield "| " + " | ".join(HEADER) + " |"
    yield "|" + "---|" * len(HEADER)
    wrong: list[str] = []
    for name, runs, rules in sets:
        for rule, judge in rules.items():
            told = [judge(run) for run in runs]
            yield "| " + " | ".join(table_row(name, rule, told)) + " |"
            if judge is ours:
                missed = Counter(
                    one.run.family for one in told
                    if one.run.leak and one.run.oom_s is not None and not is_after_onset(one.danger_s, one.run)
                )  # fmt: skip
                accused = Counter(one.run.family for one in told if not one.run.leak and one.danger_s is not None)
                wrong.append(f"- {name}: missed {listed(missed)}; accused {listed(accused)}.")
            name = ""
    yield ""
    yield "By family, this detector:"
    yield ""
    yield from wrong


def listed(families: Counter[str]) -> str:
    return ", ".join(f"{family} ({count})" for family, count in sorted(families.items())) or "none"


def main() -> None:
    parser = argparse.ArgumentParser(description="Score growing and dangerous.")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/detector.md")
    parser.add_argument("--generator", type=Path, metavar="FILE", help="judge one more author's series only")
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103], help="of that generator")
    parser.add_argument("--view", choices=["step", "1hz"], default="step")
    parser.add_argument("--set", default="core", dest="part", help="which of its families: core or all")
    args = parser.parse_args()
    rules: dict[str, Callable[[Run], Told]] = {"this detector": ours, "slope test": slope}
    if args.generator is not None:
        sys.path.insert(0, str(args.generator.parent))
        generator = importlib.import_module(args.generator.stem)
        runs = list(of_generator(generator, args.seeds, args.view, args.part))
        if args.generator.with_name("floorladder.py").exists():
            rules["its author's floor ladder"] = ladder
        seeds = ", ".join(map(str, args.seeds))
        print("\n".join(lines_of([(f"{len(runs)} of another author, {args.view}, seeds {seeds}", runs, rules)])))
        return
    sets = [(f"loops, {card.replace('_', ', ')}", list(recordings(card)), rules) for card in WILD_CARDS]
    sets += [
        (f"{author.__name__.rsplit('.', 1)[1]}, {view}", list(of_generator(author, FRESH, view)), rules)
        for author in (typical, adversarial, whole_jobs)
        for view in ("step", "1hz")
    ]
    sets.append(("ours, made up", list(made_up(HELD_OUT)), rules))
    lines = list(lines_of(sets))
    print("\n".join(lines))
    if args.docs:
        PAGE.write_text(between(PAGE.read_text(), "detector_danger", lines))


if __name__ == "__main__":
    main()
