"""Every query of every dashboard, asked of a real Prometheus that holds two hours of a made-up fleet."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from fleet_story import CLUSTER, Plot, job_id
from grafana_variables import Chosen, all_of_them, interpolated, of_the_range, one
from integration.needs import missing
from integration.prometheus_past import Past, cannot_be_had, prometheus_with_a_past
from tidegauge_exporter.dashboards.catalogue import dashboards
from tidegauge_exporter.dashboards.model.dashboard import Dashboard
from tidegauge_exporter.dashboards.model.fields import Json
from tidegauge_exporter.dashboards.model.queries import Marks, Query
from tidegauge_exporter.dashboards.model.variables import LabelValues, VariableChoice

pytestmark = pytest.mark.timeout(600)

MAX_SERIES = 50
"""In one panel; only the heat maps have a series for each rank."""

JOBS = {plot: job_id(plot.value) for plot in Plot}
LEAKS, RESTARTS, TWO_GROUPS = JOBS[Plot.LEAK], JOBS[Plot.OUT_OF_MEMORY], JOBS[Plot.TWO_GROUPS]
NOT_IN_THIS_FLEET = {
    "Series": "Prometheus evaluates no alerts over history",
}
"""Queries, by legend or column, that are empty for every job; all others must answer for some job."""


class Asked(NamedTuple):
    """One query and where it is from."""

    panel: str
    query: Query
    name: str
    """Legend, or title of the column."""
    expression: str
    result: list[dict[str, Any]]
    many_series: bool


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    reason = cannot_be_had()
    if reason is not None:
        missing(reason)
    folder = tmp_path_factory.mktemp("dashboards")
    with prometheus_with_a_past(folder, jobs=7, ranks_per_job=8, hours=2, ends_unix_s=1_763_700_000) as past:
        yield past


def _chosen(past: Past, dashboard: Dashboard, wanted: Mapping[str, str]) -> dict[str, Chosen]:
    """The variables in their order, each from the answer of Prometheus; what the URL asks for must be among it."""
    values = of_the_range(past.range_s, past.step_s)
    for variable in dashboard.variables:
        if isinstance(variable, VariableChoice):
            values[variable.name] = Chosen(*variable.options[0])
        if not isinstance(variable, LabelValues):
            continue
        query = variable.to_json()["query"]["query"]
        label_values = re.fullmatch(r"label_values\((.+),(\w+)\)", query)
        assert label_values is not None, query
        options = past.label_values(interpolated(label_values[1], values), label_values[2])
        assert options or variable.may_be_absent, f"{dashboard.title}: nothing to choose for ${variable.name}"
        value = wanted.get(variable.name)
        assert value is None or value in options, f"{dashboard.title}: ${variable.name} has {options}, not {value}"
        if variable.with_all and value is None:
            values[variable.name] = all_of_them(variable.to_json()["allValue"])
        else:
            values[variable.name] = one(value or options[0])
    return values


def _asked(past: Past, dashboard: Dashboard, wanted: Mapping[str, str]) -> Iterator[Asked]:
    """Every query of panels and marks, run as Grafana runs it."""
    values = _chosen(past, dashboard, wanted)
    for panel in dashboard.panels():
        told = panel.to_json()
        for query, target in zip(panel.all_queries(), told.get("targets", []), strict=True):
            expression = interpolated(target["expr"], values)
            name = interpolated(target["legendFormat"], values) or _column(told, target) or panel.title
            result = past.at_the_end(expression) if target["instant"] else past.over_the_range(expression)
            yield Asked(panel.title, query, name, expression, result, panel.type == "heatmap")
    for mark in dashboard.marks:
        if isinstance(mark, Marks):
            expression = interpolated(mark.to_json()["target"]["expr"], values)
            result = past.over_the_range(expression)
            yield Asked(f"marks {mark.name}", mark.query, mark.query.legend, expression, result, False)


def _column(panel: Json, target: Json) -> str | None:
    names = ("Value", f"Value #{target['refId']}")
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] in names:
            title: str = override["properties"][0]["value"]
            return title
    return None


def _by_title(title: str) -> Dashboard:
    return next(dashboard for dashboard in dashboards() if dashboard.title.endswith(title))


CASES = [
    pytest.param("Fleet", {}, id="fleet"),
    pytest.param("Incidents", {}, id="incidents"),
    pytest.param("Job", {"cluster": CLUSTER, "job_id": LEAKS}, id="job-leaks"),
    pytest.param("Job", {"cluster": CLUSTER, "job_id": RESTARTS}, id="job-restarts"),
    pytest.param("Job", {"cluster": CLUSTER, "job_id": TWO_GROUPS}, id="job-groups"),
    pytest.param("Rank and GPU", {"cluster": CLUSTER, "job_id": LEAKS, "rank": "1"}, id="rank-leaks"),
    pytest.param("Rank and GPU", {"cluster": CLUSTER, "job_id": RESTARTS, "rank": "0"}, id="rank-restarts"),
    pytest.param(
        "Rank and GPU",
        {"cluster": CLUSTER, "job_id": TWO_GROUPS, "group": "step 1", "rank": "3"},
        id="rank-of-a-group",
    ),
]


@pytest.mark.parametrize(("title", "wanted"), CASES)
def test_every_query_is_answered_with_the_labels_that_its_legend_names(
    past: Past, title: str, wanted: dict[str, str]
) -> None:
    faults = []
    for asked in _asked(past, _by_title(title), wanted):
        where = f"{asked.panel} / {asked.name}: {asked.expression}"
        if not asked.result and asked.query.may_be_empty is None:
            faults.append(f"empty: {where}")
        if len(asked.result) > MAX_SERIES and not asked.many_series:
            faults.append(f"{len(asked.result)} series: {where}")
        named = set(re.findall(r"\{\{(\w+)\}\}", asked.query.legend))
        if wanted.get("job_id") != TWO_GROUPS:
            named.discard("group")  # which is absent where a job has one; Grafana then writes nothing
        faults += [
            f"no label {label}: {where}"
            for label in sorted(named)
            if not all(label in series["metric"] for series in asked.result)
        ]
    assert not faults, "\n".join(faults)


def test_dashboard_queries_that_may_be_empty_sometimes_answer(past: Past) -> None:
    """A query with a fault in it is always empty, and being excused would hide that."""
    found: dict[tuple[str, str, str], bool] = defaultdict(bool)
    for case in CASES:
        title, wanted = case.values
        assert isinstance(title, str)
        assert isinstance(wanted, dict)
        for asked in _asked(past, _by_title(title), wanted):
            found[title, asked.panel, asked.name] |= bool(asked.result)
    assert {name for (_, _, name), answered in found.items() if not answered} == set(NOT_IN_THIS_FLEET)


def _rows_of_the_heat_map(past: Past, job: str) -> list[str]:
    """Of the memory of its ranks, from the first on."""
    asked = _asked(past, _by_title("Job"), {"cluster": CLUSTER, "job_id": job})
    heat_map = next(one for one in asked if one.panel == "Allocated, by rank")
    return [series["metric"]["row"] for series in heat_map.result]


def test_the_heat_map_lists_the_ranks_by_number(past: Past) -> None:
    assert _rows_of_the_heat_map(past, LEAKS) == [f"{rank:05}" for rank in range(8)]


def test_the_heat_map_has_a_row_for_each_rank_of_each_group(past: Past) -> None:
    assert _rows_of_the_heat_map(past, TWO_GROUPS) == [
        f"step {step} {rank:05}" for step in range(2) for rank in range(4)
    ]


def test_a_rank_of_one_group_is_not_mixed_with_the_same_rank_of_the_other(past: Past) -> None:
    wanted = {"cluster": CLUSTER, "job_id": TWO_GROUPS, "rank": "0"}
    of_each = [
        {
            (asked.name, series["metric"].get("gpu")): series["values"]
            for asked in _asked(past, _by_title("Rank and GPU"), {**wanted, "group": f"step {step}"})
            if asked.panel.startswith("GPU memory by use")
            for series in asked.result
        }
        for step in range(2)
    ]

    assert of_each[0].keys() == of_each[1].keys()
    assert of_each[0] != of_each[1]


def test_the_odd_rank_is_the_leaking_one(past: Past) -> None:
    curves = {
        series["metric"]["rank"]: float(series["values"][-1][1])
        for asked in _asked(past, _by_title("Job"), {"cluster": CLUSTER, "job_id": LEAKS})
        if asked.panel.startswith("Odd rank out")
        for series in asked.result
    }

    assert max(curves, key=lambda rank: curves[rank]) == "1"
    assert curves["1"] > 10 * max(value for rank, value in curves.items() if rank != "1")


def test_the_pieces_of_the_card_add_up_to_its_total(past: Past) -> None:
    last = {
        asked.name: float(asked.result[0]["values"][-1][1])
        for asked in _asked(past, _by_title("Rank and GPU"), {"cluster": CLUSTER, "job_id": LEAKS, "rank": "1"})
        if asked.panel.startswith("GPU memory by use")
    }
    total = last.pop("GPU total")
    last.pop("rank limit")

    assert sum(last.values()) == pytest.approx(total)
    assert min(last.values()) >= 0


def test_the_job_that_ends_first_is_on_top_with_its_owner(past: Past) -> None:
    asked = next(asked for asked in _asked(past, _by_title("Fleet"), {}) if asked.name == "Out of memory in")

    left = {series["metric"]["job_id"]: float(series["value"][1]) for series in asked.result}
    owners = {series["metric"]["job_id"]: series["metric"].get("user_name") for series in asked.result}

    assert LEAKS in left
    assert all(owners.values())


def test_a_job_id_that_is_made_to_break_out_of_its_quotes_stays_a_value(past: Past) -> None:
    hostile = one('x"} or tidegauge_job_info{job_id=~".*')

    assert past.at_the_end(interpolated('tidegauge_job_info{job_id="$job_id"}', {"job_id": hostile})) == []
