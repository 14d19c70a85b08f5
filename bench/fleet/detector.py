"""The leak detector for a whole fleet in one process: processor time a sample, and memory, over an hour of samples.

    PYTHONPATH=bench python -m fleet.detector [--ranks 10000] [--seconds 3600]

Every detector gets a sample for each second of fleet time, one after the other, as fast as it goes: what each remembers
has left the processor's caches when its turn comes, as it has in a real agent. All four signals are fed. Recorded
series and made-up ones (leaks, growth, noise) take turns; making them is not counted. The garbage collector runs.
The detectors of a round all stand at the same sample, so a look at many of them at once shows in the worst round only.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

from fleet.measuring import Bound, bounds_table, private_bytes, say
from fleet.series import Replay, replays

from leakseries.corpus import make  # isort: skip - fleet.series puts tests on the path
from tidegauge.core.detector import RankDetector
from tidegauge.core.verdicts import LeakState

RANKS = 10_000
HOUR_S = 3600
BOUND_PERCENT = 10.0
GROWTH_PERCENT = 25.0
"""Of memory from half an hour to an hour. A detector keeps up to 128 floors on each of ten scales, each four times as
long as the one before: twice the samples add half a scale to some three, once and for all. What kept every sample
would grow by 100."""
MAX_DETECTOR_BYTES = 128 << 10
YOUNG_SAMPLES = 500
STREAMS = 200
"""Different series at one moment; the ranks of a job, and of like jobs, see the same."""
GIB = 1 << 30
LIMIT_BYTES = 141 * GIB
SYNTHETIC = (
    "steady", "variable_length", "random_walk_length", "linear", "curriculum", "replay_buffer", "fragmentation",
)  # fmt: skip
SYNTHETIC_STEPS = 1200


class Arguments(NamedTuple):
    """Of ``RankDetector.update``, but step and time."""

    allocated_bytes: int
    reserved_bytes: int
    allocated_peak_bytes: int
    nontorch_bytes: int
    host_bytes: int


class Figures(NamedTuple):
    """What a run measured."""

    ranks: int
    samples: int
    """Of each rank."""
    young_us: float
    """Mean processor time of one of the first ``YOUNG_SAMPLES`` samples."""
    steady_us: float
    """... and of one after them."""
    worst_round_us: float
    """Mean of the round that cost most."""
    bytes_each: float
    """Private memory of the process over the detectors, at the end."""
    bytes_each_at_half: float
    leaks: int
    """Detectors that say leak at the end."""

    @property
    def mean_us(self) -> float:
        """Of all samples."""
        young = min(self.samples, YOUNG_SAMPLES)
        return (self.young_us * young + self.steady_us * (self.samples - young)) / self.samples

    @property
    def percent_of_a_core(self) -> float:
        """For ``RANKS`` ranks at a sample a second, in the steady state."""
        return self.steady_us * RANKS / 1e4

    @property
    def young_percent_of_a_core(self) -> float:
        return self.young_us * RANKS / 1e4

    @property
    def growth_percent(self) -> float:
        """Of memory in the second half."""
        return 100 * (self.bytes_each / self.bytes_each_at_half - 1)


def streams(seed: int = 1) -> list[Replay]:
    """Recorded and made-up series in turn."""
    chance = random.Random(seed)
    made = []
    for number, family in zip(range(STREAMS // 2), itertools.cycle(SYNTHETIC)):
        series = make(family, number, SYNTHETIC_STEPS)
        made.append(Replay(family, series.rows, leak=series.leak, onset_step=series.onset_step))
    recorded = list(replays())
    chance.shuffle(recorded)
    return [*made, *itertools.islice(itertools.cycle(recorded), STREAMS - len(made))]


def _samples(played: list[Replay], ranks: int) -> Iterator[list[Arguments]]:
    """A sample of every rank, second by second."""
    chance = random.Random(2)
    for second in itertools.count():
        now = []
        for replay in played:
            memory = replay.at(second)
            nontorch = 2 * GIB + chance.randrange(-1, 2) * (2 << 20)
            host = 12 * GIB + chance.randrange(64 << 20)
            now.append(Arguments(*memory, nontorch, host))
        yield [now[rank % len(now)] for rank in range(ranks)]


def measure(ranks: int = RANKS, seconds: int = HOUR_S) -> Figures:
    """Feed so many detectors for so long; says how far it is every ten seconds."""
    samples = _samples(streams(), ranks)
    next(samples)
    gc.collect()
    empty_bytes = private_bytes()
    detectors = [RankDetector() for _ in range(ranks)]
    rounds_us: list[float] = []
    half_bytes = 0
    said_s = time.monotonic()
    for second in range(seconds):
        rounds_us.append(_round_s(detectors, next(samples), second) * 1e6 / ranks)
        if second == seconds // 2:
            half_bytes = private_bytes() - empty_bytes
        if time.monotonic() - said_s > 10:
            said_s = time.monotonic()
            say(f"  detector, {ranks:,} ranks: {second + 1:,} of {seconds:,} s, {rounds_us[-1]:.1f} us a sample")
    young, steady = rounds_us[:YOUNG_SAMPLES], rounds_us[YOUNG_SAMPLES:] or rounds_us
    return Figures(
        ranks=ranks,
        samples=seconds,
        young_us=sum(young) / len(young),
        steady_us=sum(steady) / len(steady),
        worst_round_us=max(rounds_us),
        bytes_each=(private_bytes() - empty_bytes) / ranks,
        bytes_each_at_half=half_bytes / ranks,
        leaks=sum(one.verdict.state is LeakState.LEAK for one in detectors),
    )


def _round_s(detectors: list[RankDetector], samples: list[Arguments], second: int) -> float:
    """Processor time of one sample for each."""
    time_s = 1000.0 + second
    began_s = time.thread_time()
    for detector, sample in zip(detectors, samples, strict=True):
        allocated, reserved, peak, nontorch, host = sample
        detector.update(
            step=second,
            time_s=time_s,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            nontorch_bytes=nontorch,
            host_bytes=host,
            allocated_peak_bytes=peak,
            limit_bytes=LIMIT_BYTES,
        )
    return time.thread_time() - began_s


def bounds(figures: Figures) -> list[Bound]:
    """The issue's bound is on the steady state; a fleet whose every rank is in its first minutes is told beside it."""
    steady, young = "detector, 10,000 ranks at 1 Hz", f"... all in their first {YOUNG_SAMPLES} samples"
    return [
        Bound(steady, BOUND_PERCENT, figures.percent_of_a_core, "% of a core"),
        Bound(young, BOUND_PERCENT, figures.young_percent_of_a_core, "% of a core"),
        Bound("... memory of each after an hour", MAX_DETECTOR_BYTES / 1024, figures.bytes_each / 1024, "KiB"),
        Bound("... growth of it in the second half hour", GROWTH_PERCENT, figures.growth_percent, "%"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--seconds", type=int, default=HOUR_S, help="of fleet time")
    parser.add_argument("--quick", action="store_true", help="a smoke run with few ranks")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(100, 600) if args.quick else measure(args.ranks, args.seconds)
    found = bounds(figures)
    if args.json:
        print(json.dumps({"bounds": [one._asdict() for one in found], **figures._asdict()}))
    else:
        print(bounds_table(found))
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
