"""Asks a real Prometheus, filled with the made-up fleet of the tests, all that a dashboard asks: input of the drawing.

``python figures.py DIR`` writes ``DIR/UID.json`` for each dashboard: its JSON, the values of its variables, the results
of its queries by panel, and its marks. What Grafana would put into the queries (variables, step, range) is put in here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

from fleet_history import write_history
from grafana_variables import options_of_query_result
from integration.prometheus_server import running_prometheus
from tidegauge_exporter.dashboards.catalogue import dashboards
from tidegauge_exporter.rules.files import rule_files
from tidegauge_exporter.rules.values import Addresses

JOBS, RANKS, HOURS, SCRAPE_S = 7, 16, 6.5, 30
CHOSEN: Final = {
    "tidegauge-job": {"cluster": "lab", "job_id": "4700"},
    "tidegauge-rank": {"cluster": "lab", "job_id": "4700", "rank": "1"},
    "tidegauge-node": {"cluster": "lab", "node": "node0000"},
}
"""What the reader of the pictures has chosen; else all."""
PANEL_POINTS: Final = 600
"""About one a pixel of a panel that is half a laptop wide, as Grafana asks."""

CONFIG: Final = f"global: {{scrape_interval: {SCRAPE_S}s}}\n"

Json = dict[str, Any]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        ends_s = int(time.time())
        _fill(work, ends_s)
        (work / "alerts.yml").write_text(_at_once(rule_files(Addresses())["tidegauge-alerts.yml"]))
        with running_prometheus(work, f"{CONFIG}rule_files: [alerts.yml]\n") as server:
            server.wait_for("ALERTS")
            for dashboard in dashboards("http://tidegauge.example:9495"):
                answers = Answers(server.url, dashboard.to_json(), ends_s)
                (folder / f"{dashboard.uid}.json").write_text(json.dumps(answers.payload()))
                print(f"figures of {dashboard.uid}", flush=True)


def _fill(work: Path, ends_s: int) -> None:
    """Hours of readings and of recorded series, in blocks that Prometheus finds when it starts."""
    write_history(
        work / "history.om", jobs=JOBS, ranks_per_job=RANKS, hours=HOURS, period_s=SCRAPE_S, end_unix_s=ends_s
    )
    blocks = ["promtool", "tsdb", "create-blocks-from"]
    subprocess.run([*blocks, "openmetrics", "-q", work / "history.om", work / "tsdb"], check=True)
    (work / "history.om").unlink()
    rules = work / "recording.yml"
    rules.write_text(rule_files(Addresses())["tidegauge-recording.yml"])
    with running_prometheus(work, CONFIG) as server:
        span = [f"--start={ends_s - int(HOURS * 3600)}", f"--end={ends_s}", f"--eval-interval={SCRAPE_S}s"]
        flags = [*span, f"--url={server.url}", f"--output-dir={work / 'tsdb'}", str(rules)]
        subprocess.run([*blocks, "rules", *flags], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _at_once(alerts: str) -> str:
    """The alerts without their waiting times: a history cannot be made for them, so they look at the present only."""
    return re.sub(r"interval: \w+", "interval: 1s", re.sub(r"(?m)^ +(keep_firing_)?for: .*\n", "", alerts))


class Answers:
    """One dashboard's questions, as Grafana would have asked them when the history ended, and Prometheus' answers."""

    def __init__(self, url: str, dashboard: Json, ends_s: int) -> None:
        self._url = url
        self._dashboard = dashboard
        self._to_s = ends_s
        hours = int(dashboard["time"]["from"].removeprefix("now-").removesuffix("h"))
        self._from_s = ends_s - hours * 3600
        self._values: dict[str, str] = {}
        self._texts: dict[str, str] = {}
        for variable in dashboard["templating"]["list"]:
            self._choose(variable)

    def payload(self) -> Json:
        """What the page draws."""
        panels = [panel for top in self._dashboard["panels"] for panel in (top, *top.get("panels", ()))]
        return {
            "dashboard": self._dashboard,
            "variables": [
                {"label": one["label"], "text": self._texts[one["name"]]}
                for one in self._dashboard["templating"]["list"]
            ],
            "fromMs": self._from_s * 1000,
            "toMs": self._to_s * 1000,
            "results": {panel["id"]: list(self._results(panel)) for panel in panels},
            "marks": [mark for one in self._dashboard["annotations"]["list"] for mark in self._marks(one)],
        }

    def _choose(self, variable: Json) -> None:
        name = variable["name"]
        if variable["type"] == "datasource":
            value = text = "Prometheus"
        elif variable["type"] == "custom":
            value, text = variable["current"]["value"], variable["current"]["text"]
        elif name in (chosen := CHOSEN.get(self._dashboard["uid"], {})):
            value, options = chosen[name], self._options(variable)
            assert value in options, f"{name} {value}: not in {options}"
            text = options[value]
        else:
            value, text = variable["allValue"], "All"
        self._values[name], self._texts[name] = value, text

    def _options(self, variable: Json) -> dict[str, str]:
        """The shown text of each value."""
        query = self._filled(variable["query"]["query"], 60)
        if query.startswith("query_result("):
            found = self._ask("query", query=query[len("query_result(") : -1], time=self._to_s)["result"]
            return options_of_query_result(variable["regex"], found)
        match = re.fullmatch(r"label_values\((.*),\s*(\w+)\)", query)
        assert match is not None, query
        values: list[str] = self._ask(
            f"label/{match[2]}/values", **{"match[]": match[1]}, start=self._from_s, end=self._to_s
        )
        return dict(zip(values, values, strict=True))

    def _results(self, panel: Json) -> Iterator[Json]:
        points = panel.get("maxDataPoints", PANEL_POINTS)
        step_s = max(self._range_s / points, SCRAPE_S, _seconds(panel.get("interval", "0s")))
        for target in panel.get("targets", ()):
            step = int(step_s)
            expr = self._filled(target["expr"], step)
            if target["instant"]:
                # Alerts have no history: they are those of the moment at which Prometheus first looked, later than it.
                moment_s = time.time() if "ALERTS" in expr else self._to_s
                found = self._ask("query", query=expr, time=moment_s)["result"]
            else:
                # Grafana moves the range onto multiples of the step.
                start, end = self._from_s // step * step, self._to_s // step * step
                found = self._ask("query_range", query=expr, start=start, end=end, step=step)["result"]
            yield {
                "refId": target["refId"],
                "table": target["format"] == "table",
                "legend": self._filled(target["legendFormat"], step, texts=True),
                "stepMs": step * 1000,
                "series": found,
            }

    def _marks(self, annotation: Json) -> Iterator[Json]:
        """Marks out of Prometheus; those that Grafana keeps itself are not there."""
        target = annotation["target"]
        if "expr" not in target:
            return
        step = _seconds(target["interval"])
        expr = self._filled(target["expr"], step)
        start, end = self._from_s // step * step, self._to_s // step * step
        for series in self._ask("query_range", query=expr, start=start, end=end, step=step)["result"]:
            points = [(at_s, float(value)) for at_s, value in series["values"] if float(value) > 0]
            moments_ms = {value for _, value in points} if annotation["useValueForTime"] else _begins(points, step)
            for at_ms in sorted(moments_ms):
                text = _legend(annotation["textFormat"], series["metric"])
                yield {"atMs": at_ms, "colour": annotation["iconColor"], "text": text}

    def _filled(self, text: str, step_s: int, *, texts: bool = False) -> str:
        """With the values of variables in their places; Grafana's longest interval of a rate is four scrapes."""
        known = {**self._values, "__interval": f"{step_s}s", "__range": f"{self._range_s}s",
                 "__rate_interval": f"{max(step_s + SCRAPE_S, 4 * SCRAPE_S)}s"}  # fmt: skip
        return re.sub(
            r"\$\{(\w+)(:text)?\}|\$(\w+)",
            lambda match: (self._texts if match[2] or texts else known).get(match[1] or match[3], match[0]),
            text,
        )

    @property
    def _range_s(self) -> int:
        return self._to_s - self._from_s

    def _ask(self, path: str, **parameters: object) -> Any:
        with urlopen(f"{self._url}/api/v1/{path}?{urlencode(parameters)}") as answer:
            return json.load(answer)["data"]


def _begins(points: list[tuple[float, float]], step_s: int) -> set[float]:
    """Where each run of neighbouring points begins, in milliseconds."""
    times = [at_s for at_s, _ in points]
    return {at_s * 1000 for before, at_s in zip([float("-inf"), *times], times, strict=False) if at_s - before > step_s}


def _legend(form: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), form)


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
