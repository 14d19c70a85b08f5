"""Draws docs/img/detector-*.svg from recorded series: a leak, growth that ended, and a leak under noise.

python bench/detector_plots.py
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "tidegauge"
import matplotlib.pyplot as plt  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leakseries.corpus import make  # noqa: E402
from leakseries.machine import Row, feed  # noqa: E402
from leakseries.recorded import FOLDER, read_rows  # noqa: E402
from tidegauge.core.detector import RankDetector  # noqa: E402
from tidegauge.core.detector.shape import ladder_of  # noqa: E402
from tidegauge.core.verdicts import LeakState, Verdict  # noqa: E402

MIB = 1 << 20
WINDOW = 4
COLOURS = {LeakState.SUSPECTED: "#f2c14e", LeakState.LEAK: "#d1495b"}


def states_of(rows: list[Row]) -> tuple[list[LeakState], Verdict]:
    """The verdict's state after every row, and the last verdict."""
    detector = RankDetector()
    states = [feed(detector, row).state for row in rows]
    return states, detector.look_now()


def draw(name: str, title: str, rows: list[Row]) -> None:
    values = [row.allocated / MIB for row in rows]
    floors = [min(values[at : at + WINDOW]) for at in range(0, len(values) - WINDOW + 1, WINDOW)]
    states, verdict = states_of(rows)
    figure, axes = plt.subplots(figsize=(7.2, 2.9))
    axes.plot(values, color="#9db4c0", linewidth=0.8, label="allocated at each step")
    axes.plot(
        range(WINDOW, len(values) + 1, WINDOW), ladder_of(floors, len(floors) - 1), color="#1b3a4b", label="ladder"
    )
    low, high = axes.get_ylim()
    step = 0
    for state, same in groupby(states):
        lasted = len(list(same))
        if state is not LeakState.OK:
            axes.axvspan(step, step + lasted, ymax=0.04, color=COLOURS[state], linewidth=0)
        step += lasted
    if verdict.onset_step is not None and verdict.state is LeakState.LEAK:
        axes.axvline(verdict.onset_step, color="#1b3a4b", linestyle=":", label=f"onset: step {verdict.onset_step}")
    axes.set_ylim(low, high)
    axes.set(title=f"{title}: {verdict.state.value}", xlabel="step (yellow: suspected, red: leak)", ylabel="MiB")
    axes.legend(loc="upper left", fontsize="small", frameon=False)
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "img" / f"detector-{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    (ROOT / "docs" / "img").mkdir(parents=True, exist_ok=True)
    draw("leak", "A leak that starts late (recorded)", read_rows(FOLDER / "late_leak" / "steps.csv.gz"))
    draw("buffer", "A replay buffer that fills (recorded)", read_rows(FOLDER / "replay_buffer" / "steps.csv.gz"))
    draw("noise", "A leak under noise (synthetic)", make("slow_under_boundary_noise", 2, 500).rows)


if __name__ == "__main__":
    main()
