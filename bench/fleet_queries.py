"""What the Fleet dashboard and the rules cost a real Prometheus that watches 10,000 ranks: 400 jobs on 1,250 nodes.

    python bench/fleet_queries.py [--jobs 400] [--ranks-per-job 25] [--dashboard FILE] [--folder DIR]

Asks every query of the dashboard over its own default range, as Grafana would, and every expression of the recording
and alert rules, three times each. Prints one JSON object; exits with 1 if a query of the dashboard takes longer than
the target (median; the first is told beside it), or if a group of rules takes longer than a quarter of its interval.
Needs `prometheus` and `promtool`, three to seven minutes, and 3 GiB in DIR.

What was scraped is made for the last eleven minutes, every 15 s, which is all that the rules look at. What the
dashboard asks for over hours (recorded series, and what agents and coordinator say about themselves) is that last
moment, copied back every 30 s with a wave on it: as many series as there would be, if not their story.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from fleet_history import samples  # noqa: E402
from fleet_story import CLUSTER, Fleet  # noqa: E402
from grafana_variables import interpolated, of_the_range, one  # noqa: E402
from integration.prometheus_server import running_prometheus  # noqa: E402
from tidegauge_exporter.rules.alerts import ALERTS  # noqa: E402
from tidegauge_exporter.rules.recording import RECORDING  # noqa: E402

DASHBOARD = ROOT / "deploy" / "observability" / "grafana" / "dashboards" / "tidegauge-fleet.json"
END_UNIX_S = 1_763_700_000
SCRAPED_S, SCRAPE_PERIOD_S = 660, 15
STEP_S = 30
"""Of range queries, and between two recorded samples: what Grafana asks of a panel of usual width over six hours."""
BLOCK_S = 2 * 3600
TARGET_S = 1.0
SHARE_OF_INTERVAL = 0.25
"""A group that takes longer than its interval misses turns; on a machine that has other work, too."""
REPEAT = 3
CONFIG = "global: {scrape_interval: 15s}\n"


class Series(NamedTuple):
    """A series at the end of the history."""

    name_and_labels: str
    value: float


class Timed(NamedTuple):
    """What a question cost."""

    question: str
    median_s: float
    first_s: float
    series: int


class RuleGroup(NamedTuple):
    """As much of a group of rules as is looked at here."""

    name: str
    interval_s: int
    expressions: list[str]


class Asker:
    """Puts questions to a Prometheus about the end of the history, and looks at the clock."""

    def __init__(self, url: str, range_s: int) -> None:
        self._url = url
        self._range_s = range_s

    def result(self, promql: str, *, instant: bool = True) -> list[dict[str, Any]]:
        """Raises ``HTTPError`` for what Prometheus does not understand."""
        when = {"time": str(END_UNIX_S)}
        if not instant:
            when = {"start": str(END_UNIX_S - self._range_s), "end": str(END_UNIX_S), "step": str(STEP_S)}
        path = "query" if instant else "query_range"
        body = urllib.parse.urlencode({"query": promql, **when}).encode()
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", data=body, timeout=120) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def timed(self, promql: str, *, instant: bool) -> Timed:
        times_s, series = [], 0
        for _ in range(REPEAT):
            began_s = time.perf_counter()
            series = len(self.result(promql, instant=instant))
            times_s.append(time.perf_counter() - began_s)
        return Timed(promql, round(statistics.median(times_s), 3), round(times_s[0], 3), series)


def make_blocks(folder: Path, lines: Iterable[str]) -> None:
    """OpenMetrics lines with timestamps into ``folder/tsdb``, in pieces that memory and disk can hold."""
    text = folder / "part.om"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.write("# EOF\n")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "-q", str(text), str(folder / "tsdb")]
    subprocess.run(command, check=True, capture_output=True, timeout=900)
    text.unlink()


def scraped(fleet: Fleet) -> Iterator[str]:
    """What Prometheus scraped in the last minutes."""
    for unix_s in range(END_UNIX_S - SCRAPED_S, END_UNIX_S + 1, SCRAPE_PERIOD_S):
        yield from (f"{sample} {unix_s}\n" for sample in samples(fleet, fleet.moment(unix_s)))


def copied_back(series: Sequence[Series], range_s: int, until_unix_s: int) -> Iterator[list[str]]:
    """The series at every step of the range up to there, a block at a time. Counters grow evenly to their value."""
    begin_unix_s = END_UNIX_S - range_s
    for block_unix_s in range(begin_unix_s - begin_unix_s % BLOCK_S, until_unix_s, BLOCK_S):
        steps = range(max(block_unix_s, begin_unix_s), min(block_unix_s + BLOCK_S, until_unix_s), STEP_S)
        yield [
            f"{one.name_and_labels} {_earlier(one, (unix_s - begin_unix_s) / range_s):.10g} {unix_s}\n"
            for unix_s in steps
            for one in series
        ]


def _earlier(series: Series, share: float) -> float:
    if series.name_and_labels.partition("{")[0].endswith("_total"):
        return float(int(series.value * share))
    return series.value if series.value in (0, 1) else series.value * (0.9 + 0.1 * math.sin(40 * share))


def asked_for(dashboard: dict[str, Any]) -> list[tuple[str, bool]]:
    """Every query of the dashboard and whether it is instant."""
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    marks = [mark for mark in dashboard["annotations"]["list"] if mark.get("expr")]
    return [(target["expr"], bool(target.get("instant"))) for target in targets if "expr" in target] + [
        (mark["expr"], False) for mark in marks
    ]


def seconds_of(relative: str) -> int:
    """``now-6h`` in seconds. Raises ``ValueError`` for any other form."""
    found = re.fullmatch(r"now-(\d+)([mhd])", relative)
    if found is None:
        raise ValueError(f"a dashboard that begins at {relative!r} is not understood")
    return int(found[1]) * {"m": 60, "h": 3600, "d": 86400}[found[2]]


def resident_mib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) // 1024


def label_text(metric: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in metric.items() if name != "__name__") + "}"


def recorded_now(asker: Asker) -> list[Series]:
    """What every recording rule gives at the end of the history."""
    return [
        Series(rule.record + label_text(found["metric"]), float(found["value"][1]))
        for group in RECORDING
        for rule in group.rules
        for found in asker.result(rule.expr)
    ]


def touched_now(fleet: Fleet, queries: Iterable[str]) -> list[Series]:
    """Scraped series that the dashboard asks for by name, at the beginning of what was scraped."""
    names = {name for query in queries for name in re.findall(r"(?<![\w:])(?:tidegauge_\w+|up)(?=\{)", query)}
    told = samples(fleet, fleet.moment(END_UNIX_S - SCRAPED_S))
    pairs = [sample.rsplit(" ", 1) for sample in told if sample.partition("{")[0] in names]
    return [Series(series, float(value)) for series, value in pairs]


def rule_groups() -> Iterator[RuleGroup]:
    """Recording and alert rules alike."""
    for recording in RECORDING:
        yield RuleGroup(recording.name, recording.interval_s, [rule.expr for rule in recording.rules])
    for alerts in ALERTS:
        yield RuleGroup(alerts.name, alerts.interval_s, [rule.expr for rule in alerts.rules])


def group_seconds(asker: Asker) -> dict[str, dict[str, float]]:
    """Group of rules to what its rules take one after the other, and the slowest of them."""
    times = {
        group.name: [asker.timed(expr, instant=True).median_s for expr in group.expressions] for group in rule_groups()
    }
    return {name: {"sum_s": round(sum(each), 3), "worst_s": max(each)} for name, each in times.items()}


def measure(fleet: Fleet, dashboard_path: Path, folder: Path) -> dict[str, Any]:
    dashboard = json.loads(dashboard_path.read_text(encoding="utf-8"))
    range_s = seconds_of(dashboard["time"]["from"])
    variables = {**of_the_range(range_s, STEP_S), "cluster": one(CLUSTER)}
    queries = [(interpolated(expr, variables), instant) for expr, instant in asked_for(dashboard)]

    make_blocks(folder, scraped(fleet))
    with running_prometheus(folder, CONFIG) as server:
        recorded = recorded_now(Asker(server.url, range_s))
    for block in copied_back(recorded, range_s, END_UNIX_S + 1):
        make_blocks(folder, block)
    touched = touched_now(fleet, (query for query, _ in queries))
    for block in copied_back(touched, range_s, END_UNIX_S - SCRAPED_S):
        make_blocks(folder, block)

    with running_prometheus(folder, CONFIG, "--query.timeout=100s", "--query.max-samples=200000000") as server:
        asker = Asker(server.url, range_s)
        timed = [asker.timed(query, instant=instant) for query, instant in queries]
        groups = group_seconds(asker)
        memory_mib = resident_mib(server.pid)
    return {
        "range_s": range_s,
        "recorded_series": len(recorded),
        "other_series_over_the_range": len(touched),
        "queries": [one_query._asdict() for one_query in sorted(timed, key=lambda each: -each.median_s)],
        "rule_groups": groups,
        "prometheus_mib": memory_mib,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--ranks-per-job", type=int, default=25)
    parser.add_argument("--dashboard", type=Path, default=DASHBOARD, help="the dashboard's JSON (default: Fleet)")
    parser.add_argument("--folder", type=Path, help="where to put the data for a while (default: the system's)")
    args = parser.parse_args()
    fleet = Fleet(args.jobs, args.ranks_per_job, END_UNIX_S - 6 * 3600.0, float(END_UNIX_S))
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        result = measure(fleet, args.dashboard, Path(folder))
    worst_s = max(query["median_s"] for query in result["queries"])
    late = [
        group.name
        for group in rule_groups()
        if result["rule_groups"][group.name]["sum_s"] > SHARE_OF_INTERVAL * group.interval_s
    ]
    ok = worst_s <= TARGET_S and not late
    summary = {
        "bench": "fleet_queries",
        "ranks": args.jobs * args.ranks_per_job,
        "nodes": fleet.nodes,
        "worst_median_s": worst_s,
        "worst_first_s": max(query["first_s"] for query in result["queries"]),
        "target_s": TARGET_S,
        "late_rule_groups": late,
        "ok": ok,
        "load_1min": round(os.getloadavg()[0], 1),
        "cpus": os.cpu_count(),
    }
    print(json.dumps({**summary, **result}, indent=2))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
