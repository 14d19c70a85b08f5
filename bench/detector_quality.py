"""How good is the leak detector? On recorded and on made-up series, against a naive slope test. Prints Markdown.

    python bench/detector_quality.py                       # all of it, about four minutes
    python bench/detector_quality.py --seeds 5 --long 0    # a quick look
    python bench/detector_quality.py --docs                # and puts the tables into docs/detector.md
    python bench/detector_quality.py --recordings FOLDER   # judges what bench/gpu_recordings.py recorded (unpacked)

Recorded: tests/data/series and series_h200, from real GPUs; series_rig, from the fake-GPU rig. Everything else comes
from tests/leakseries and is synthetic.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from detector_parameters import PAGE, between

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leakseries.corpus import FAMILIES, STILL_GROWING, UNSEEN, make  # noqa: E402
from leakseries.machine import Row, Series, feed  # noqa: E402
from leakseries.recorded import loop_recordings, recorded_series, rig_series  # noqa: E402
from tidegauge.core.detector import RankDetector  # noqa: E402
from tidegauge.core.verdicts import LeakState, Severity, Verdict  # noqa: E402

TUNING_SEEDS = range(20)
HELD_OUT_FROM = 1000
LONG_STEPS = 20_000
SHARES = (0.6, 0.7, 0.8, 0.9)


class Outcome(NamedTuple):
    """What the detector said of one series."""

    series: Series
    final: Verdict
    alarms: list[tuple[int, Severity | None]]
    """Steps at which it went over to `leak`, with the severity."""
    at_alarm: Verdict | None

    @property
    def right(self) -> bool:
        if not self.series.leak:
            return self.final.state is not LeakState.LEAK
        signal = self.final.signal
        return self.final.state is LeakState.LEAK and signal is not None and signal.value == self.series.signal

    @property
    def hours(self) -> float:
        return (self.series.rows[-1].t - self.series.rows[0].t) / 3600


def watch(series: Series, *, limit_bytes: int | None = None) -> Outcome:
    detector = RankDetector()
    before = detector.verdict
    alarms: list[tuple[int, Severity | None]] = []
    at_alarm: Verdict | None = None
    for row in series.rows:
        verdict = feed(detector, row, limit_bytes=limit_bytes)
        if verdict is not before:
            if verdict.state is LeakState.LEAK and before.state is not LeakState.LEAK:
                alarms.append((row.step, verdict.severity))
                at_alarm = at_alarm or verdict
            before = verdict
    return Outcome(series, detector.look_now(), alarms, at_alarm)


def naive_says_leak(rows: Sequence[Row]) -> bool:
    """What is usually done: a straight line through the process's bytes; rising by 1 % with R^2 of 0.6 is a leak."""
    values = [row.reserved if row.nvml_process < 0 else row.nvml_process for row in rows]
    count = len(values)
    mean, middle = sum(values) / count, (count - 1) / 2
    across = sum((index - middle) ** 2 for index in range(count))
    along = sum((index - middle) * (value - mean) for index, value in enumerate(values))
    total = sum((value - mean) ** 2 for value in values)
    if total == 0 or along <= 0:
        return False
    return along * along / (across * total) >= 0.6 and along / across * count >= 0.01 * mean


def prefixes(all_series: Iterable[Series]) -> Iterator[Series]:
    """The starts of leak series that have leaked for a quarter of the prefix and for 60 steps."""
    for series in all_series:
        for share in SHARES:
            rows = series.rows[: int(share * len(series.rows))]
            if series.onset_step is not None and len(rows) - series.onset_step >= max(60, 0.25 * len(rows)):
                yield series._replace(rows=rows)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def share(part: int, whole: int) -> str:
    return f"{part}/{whole} ({100 * part / whole:.1f} %)" if whole else "-"


def verdict_rows(name: str, outcomes: Sequence[Outcome]) -> list[list[str]]:
    leaks = [outcome for outcome in outcomes if outcome.series.leak]
    benign = [outcome for outcome in outcomes if not outcome.series.leak]
    found = sum(outcome.right for outcome in leaks)
    accused = sum(not outcome.right for outcome in benign)
    naive_found = sum(naive_says_leak(outcome.series.rows) for outcome in leaks)
    naive_accused = sum(naive_says_leak(outcome.series.rows) for outcome in benign)
    return [
        [name, "this detector", share(found, len(leaks)), share(accused, len(benign))],
        ["", "naive slope test", share(naive_found, len(leaks)), share(naive_accused, len(benign))],
    ]


def family_rows(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    for family in dict.fromkeys(outcome.series.family for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.series.family == family]
        leak = mine[0].series.leak
        alarmed = [outcome for outcome in mine if outcome.alarms]
        naive = sum(naive_says_leak(outcome.series.rows) is leak for outcome in mine)
        yield [
            family,
            "leak" if leak else "ok",
            share(sum(outcome.right for outcome in mine), len(mine)),
            share(naive, len(mine)),
            str(len(alarmed)),
            delay_text(mine) if leak else "",
            onset_text(mine) if leak else "",
        ]


def delay_text(outcomes: Sequence[Outcome]) -> str:
    """Median steps from the onset to the alarm."""
    delays = [outcome.alarms[0][0] - (outcome.series.onset_step or 0) for outcome in outcomes if outcome.alarms]
    return f"{statistics.median(delays):.0f}" if delays else "-"


def onset_errors(outcomes: Sequence[Outcome]) -> list[float]:
    return [
        abs(outcome.final.onset_step - (outcome.series.onset_step or 0)) / len(outcome.series.rows)
        for outcome in outcomes
        if outcome.series.leak and outcome.right and outcome.final.onset_step is not None
    ]


def onset_text(outcomes: Sequence[Outcome]) -> str:
    errors = sorted(onset_errors(outcomes))
    return (
        f"{100 * statistics.median(errors):.1f} / {100 * errors[int(0.9 * (len(errors) - 1))]:.1f} %" if errors else "-"
    )


def slope_coverage(outcomes: Sequence[Outcome]) -> str:
    inside = judged = 0
    for outcome in outcomes:
        band, truth = outcome.final.bytes_per_step, outcome.series.bytes_per_step
        if outcome.series.leak and outcome.right and band is not None and truth is not None:
            judged += 1
            inside += band.low <= truth <= band.high
    return share(inside, judged)


class Forecasts(NamedTuple):
    """Times to out-of-memory stated at the alarm, against the step at which the limit was met."""

    judged: int
    inside: int
    too_early: int
    """Memory ran out before the lower edge: the promise was broken."""
    errors: list[float]


def forecast(families: Iterable[str], seeds: Iterable[int]) -> Forecasts:
    """Series of twice the usual length meet a limit that is drawn between what the first and second half need."""
    judged = inside = early = 0
    errors: list[float] = []
    for family in families:
        for seed in seeds:
            series = make(family, seed, 1000)
            if not series.leak:
                continue
            need = [_need(row, series.signal) for row in series.rows]
            limit = int(need[499] + (max(need) - need[499]) * (0.2 + 0.7 * (seed % 10) / 10))
            met = next((index for index, value in enumerate(need) if value > limit), None)
            at_alarm = watch(series._replace(rows=series.rows[:met]), limit_bytes=limit).at_alarm
            if met is None or at_alarm is None or at_alarm.steps_to_oom is None or at_alarm.alarm_step is None:
                continue
            left, said = met - at_alarm.alarm_step, at_alarm.steps_to_oom
            judged += 1
            inside += said.low <= left <= said.high
            early += left < said.low
            errors.append(abs(said.likely - left) / left)
    return Forecasts(judged, inside, early, errors)


def _need(row: Row, signal: str | None) -> int:
    """Bytes the process cannot do without: cached blocks can be given back, fragments cannot."""
    held = row.peak_allocated if signal == "allocated" else row.reserved
    return held + row.nvml_process - row.reserved


def false_alarm_rows(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    for name, growing in (("other benign families", False), ("families that fill or ramp for long", True)):
        mine = [
            outcome for outcome in outcomes
            if not outcome.series.leak and (outcome.series.family in STILL_GROWING) is growing
        ]  # fmt: skip
        hours = sum(outcome.hours for outcome in mine)
        alarms = sum(len(outcome.alarms) for outcome in mine)
        critical = sum(severity is Severity.CRITICAL for outcome in mine for _, severity in outcome.alarms)
        left = sum(not outcome.right for outcome in mine)
        per = 1000 / hours if hours else math.nan
        yield [
            name,
            str(len(mine)),
            f"{hours:,.0f}",
            f"{alarms} ({alarms * per:.1f})",
            f"{critical} ({critical * per:.1f})",
            f"{left}",
        ]


def report(seeds: int, long_seeds: int) -> list[str]:
    held_out = range(HELD_OUT_FROM, HELD_OUT_FROM + seeds)
    recorded = [watch(series) for series in recorded_series()]
    rig = [watch(series) for series in rig_series()]
    loops = [watch(series) for series in loop_recordings()]
    tuned = [watch(make(family, seed)) for family in FAMILIES for seed in TUNING_SEEDS]
    held = [watch(make(family, seed)) for family in FAMILIES for seed in held_out]
    unseen = [watch(make(family, seed)) for family in UNSEEN for seed in held_out]
    cut = [watch(series) for series in prefixes(outcome.series for outcome in (*recorded, *held, *unseen))]
    lines = ["Verdict after the last row:", ""]
    lines += table(
        ("series", "rule", "leaks found, right signal (naive: any)", "healthy ranks accused"),
        [
            *verdict_rows("recorded on GPUs (24)", recorded),
            *verdict_rows(f"loops on an H200, a part of them ({len(loops)})", loops),
            *verdict_rows(f"rig, real allocator ({len(rig)})", rig),
            *verdict_rows(f"synthetic, tuning seeds ({len(tuned)})", tuned),
            *verdict_rows(f"synthetic, held-out seeds ({len(held)})", held),
            *verdict_rows(f"synthetic, families never tuned on ({len(unseen)})", unseen),
            *verdict_rows(f"starts of leak series, 60 to 90 % of the rows ({len(cut)})", cut),
        ],
    )
    both = [*held, *unseen]
    lines += ["", *estimate_lines(both, forecast((*FAMILIES, *UNSEEN), held_out))]
    if long_seeds:
        lines += ["", f"False alarms in runs of {LONG_STEPS:,} steps of one second, held-out seeds;"]
        lines += ["in brackets per 1,000 rank-hours:", ""]
        lines += table(
            ("families", "runs", "rank-hours", "alarms, all withdrawn later", "of them critical", "accused at the end"),
            false_alarm_rows(list(long_benign_runs(long_seeds))),
        )
    lines += [
        "",
        "By family, held-out seeds. Delay: median steps from onset to alarm. Onset error: median / 90 % of series,",
    ]
    lines += ["as a share of the run:", ""]
    lines += table(
        ("family", "truth", "right verdict", "naive right", "alarmed at some time", "delay", "onset error"),
        family_rows(both),
    )
    return lines


def estimate_lines(outcomes: Sequence[Outcome], ahead: Forecasts) -> list[str]:
    errors = sorted(onset_errors(outcomes))
    middle = statistics.median(errors)
    tenth = errors[int(0.9 * len(errors))]
    error = statistics.median(ahead.errors)
    return [
        f"- Onset error, median / 90 % of series: {100 * middle:.1f} / {100 * tenth:.1f} % of the run.",
        f"- True mean rate inside the stated band: {slope_coverage(outcomes)}.",
        f"- Steps to out-of-memory, as stated at the first alarm: inside the band {share(ahead.inside, ahead.judged)};",
        f"  memory ran out before the lower edge {share(ahead.too_early, ahead.judged)};",
        f"  median error of the likely value {100 * error:.0f} % of what was left.",
    ]


def long_benign_runs(seeds: int) -> Iterator[Outcome]:
    for family in (*FAMILIES, *UNSEEN):
        for seed in range(HELD_OUT_FROM, HELD_OUT_FROM + seeds):
            if make(family, seed, 1).leak:
                break
            yield watch(make(family, seed, LONG_STEPS, step_s=1.0))


def recordings_report(folder: Path) -> list[str]:
    """Whole recordings, every second row of them, their starts; and each that is judged wrongly."""
    every = list(loop_recordings(folder))
    whole = [watch(series) for series in every]
    halves = [watch(series._replace(rows=series.rows[::2])) for series in every]
    cut = [watch(series) for series in prefixes(every)]
    header = ("series", "rule", "leaks found, right signal (naive: any)", "healthy ranks accused")
    lines = table(
        header,
        [
            *verdict_rows(f"all rows ({len(whole)})", whole),
            *verdict_rows(f"every second row ({len(halves)})", halves),
            *verdict_rows(f"starts of leaks, 60 to 90 % of the rows ({len(cut)})", cut),
        ],
    )
    lines += ["", f"Onset error, median / 90 % of series: {onset_text(whole)} of the run. Wrong, and withdrawn:", ""]
    for outcome in whole:
        if outcome.right and (outcome.series.leak or not outcome.alarms):
            continue
        series, final = outcome.series, outcome.final
        truth = series.signal or "ok"
        steps = ", ".join(str(step) for step, _ in outcome.alarms) or "none"
        said = final.signal.value if final.signal else ""
        lines.append(f"- {series.family}_{series.seed}: {truth}; said {final.state.value} {said}; alarms at {steps}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the leak detector.")
    parser.add_argument("--seeds", type=int, default=20, help="held-out seeds per family")
    parser.add_argument(
        "--long", type=int, default=4, help="seeds per benign family of 20,000 steps; 0 leaves them out"
    )
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/detector.md")
    parser.add_argument("--recordings", type=Path, metavar="FOLDER", help="judge these recordings only")
    args = parser.parse_args()
    if args.recordings is not None:
        print("\n".join(recordings_report(args.recordings)))
        return
    lines = report(args.seeds, args.long)
    print("\n".join(lines))
    if args.docs:
        PAGE.write_text(between(PAGE.read_text(), "detector_quality", lines))


if __name__ == "__main__":
    main()
