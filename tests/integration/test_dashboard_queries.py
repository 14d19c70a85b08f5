"""Every query of every dashboard, asked of a real Prometheus that holds two hours of a made-up fleet."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from fleet_story import CLUSTER, GIB, Plot, job_id
from grafana_variables import Chosen, all_of_them, interpolated, of_the_range, one, options_of_query_result
from integration.needs import missing
from integration.prometheus_past import Past, cannot_be_had, prometheus_with_a_past
from tidegauge_exporter.dashboards.catalogue import dashboards
from tidegauge_exporter.dashboards.model.dashboard import Dashboard
from tidegauge_exporter.dashboards.model.fields import NEVER_S, Json
from tidegauge_exporter.dashboards.model.queries import Marks, Query
from tidegauge_exporter.dashboards.model.variables import JOB_ID, JobVariable, LabelValues, VariableChoice
from tidegauge_exporter.dashboards.shared import of_owners

pytestmark = pytest.mark.timeout(600)

MAX_SERIES = 50
"""In one panel; only the heat maps have a series for each rank."""

JOBS = {plot: job_id(plot.value) for plot in Plot}
LEAKS, RESTARTS, TWO_GROUPS = JOBS[Plot.LEAK], JOBS[Plot.OUT_OF_MEMORY], JOBS[Plot.TWO_GROUPS]
FIRST, SILENT, LAST = "node0000", "node0006", "node0007"
"""Nodes: of the leaking job; whose agent stops answering; without a rank, with a stranger on its first GPU."""
NOT_IN_THIS_FLEET = {
    "Series": "Prometheus evaluates no alerts over history",
    "{{alertname}} {{job_id}} {{hostname}}": "as above",
    "gone": "no node of it dies",
    "waiting": "every node has reported",
}
"""Queries, by legend or column, that are empty for every job; all others must answer for some job."""
SOONEST = "Next predicted OOM"


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
        if isinstance(variable, JobVariable):
            jobs = _jobs_to_choose(past, variable, values)
            assert wanted[variable.name] in jobs, f"{dashboard.title}: {jobs}"
            values[variable.name] = one(wanted[variable.name])
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


def _jobs_to_choose(past: Past, variable: JobVariable, values: Mapping[str, Chosen]) -> dict[str, str]:
    """The shown text of each job, as Grafana's list has them."""
    found = past.at_the_end(interpolated(variable.expression, values))
    return options_of_query_result(variable.to_json()["regex"], found)


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
    pytest.param("Fleet", {"user": "ada", "account": "physics", "partition": "gpu", "node": FIRST}, id="fleet-chosen"),
    pytest.param("Incidents", {}, id="incidents"),
    pytest.param("Efficiency", {}, id="efficiency"),
    pytest.param("Node", {"cluster": CLUSTER, "node": FIRST}, id="node"),
    pytest.param("Node", {"cluster": CLUSTER, "node": LAST}, id="node-with-a-stranger"),
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
    silent = pytest.param("Node", {"cluster": CLUSTER, "node": SILENT})
    for case in (*CASES, silent):
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


def _jobs_at_risk(past: Past, wanted: Mapping[str, str]) -> dict[str, float]:
    """The table of Fleet from the top down: the seconds that each job has left."""
    asked = next(asked for asked in _asked(past, _by_title("Fleet"), wanted) if asked.name == "Out of memory in")
    assert all(series["metric"].get("user_name") for series in asked.result)
    left = {series["metric"]["job_id"]: float(series["value"][1]) for series in asked.result}
    return dict(sorted(left.items(), key=lambda item: item[1]))


# Fleet, in five seconds: does any job run out of memory, which one, whose is it, and can the picture be trusted?


def test_jobs_with_a_forecast_come_first_and_then_the_fullest(past: Past) -> None:
    left = _jobs_at_risk(past, {})
    growing = {JOBS[Plot.LEAK], JOBS[Plot.FRAGMENTATION], JOBS[Plot.OUTSIDE_ALLOCATOR]}

    assert set(list(left)[:3]) == growing
    assert max(left[job] for job in growing) < NEVER_S < min(left[job] for job in left if job not in growing)
    assert JOBS[Plot.ENDS] not in left


@pytest.mark.parametrize(
    ("wanted", "jobs"),
    [
        ({"user": "grace"}, {"4701"}),
        ({"account": "physics"}, {"4700", "4703"}),
        ({"account": "physics", "partition": "long"}, {"4703"}),
        ({"node": FIRST}, {LEAKS}),
    ],
)
def test_jobs_at_risk_are_those_of_the_chosen_owners_and_nodes(
    past: Past, wanted: dict[str, str], jobs: set[str]
) -> None:
    assert set(_jobs_at_risk(past, wanted)) == jobs


def test_jobs_stay_in_the_list_while_the_coordinator_names_none(past: Past) -> None:
    nobody = of_owners('cluster_job:tidegauge_ranks:count{cluster=~"$cluster"}').replace("job_info", "job_info_gone")
    values = {"cluster": one(CLUSTER)} | {name: one("ada") for name in ("user", "account", "partition")}

    assert len(past.at_the_end(interpolated(nobody, values))) >= 6


def _first_tile(past: Past, title: str, wanted: Mapping[str, str]) -> Mapping[str, Any]:
    """The one series of a dashboard's tile with the next predicted OOM."""
    (series,) = next(asked.result for asked in _asked(past, _by_title(title), wanted) if asked.panel == SOONEST)
    return series


def test_the_tile_of_the_next_predicted_oom_names_the_job_and_its_owner(past: Past) -> None:
    soonest = _first_tile(past, "Fleet", {})
    assert soonest["metric"]["job_id"] == next(iter(_jobs_at_risk(past, {})))
    assert soonest["metric"]["user_name"]


# Job, in five seconds: whose job is it, which rank is different from the others, and how long does it last?


def test_the_tile_of_the_next_predicted_oom_names_the_rank(past: Past) -> None:
    assert _first_tile(past, "Job", {"cluster": CLUSTER, "job_id": LEAKS})["metric"]["rank"] == "1"


def test_a_job_is_chosen_by_id_name_and_owner(past: Past) -> None:
    values = {**of_the_range(past.range_s, past.step_s), "cluster": one(CLUSTER)}

    assert _jobs_to_choose(past, JOB_ID, values)[LEAKS] == "4700 pretrain-0 (ada)"


def test_a_forecast_is_drawn_in_hours(past: Past) -> None:
    asked = _asked(past, _by_title("Job"), {"cluster": CLUSTER, "job_id": LEAKS})
    (curve,) = next(one.result for one in asked if one.panel == "Time to OOM")
    left_s = float(_first_tile(past, "Job", {"cluster": CLUSTER, "job_id": LEAKS})["value"][1])

    assert float(curve["values"][-1][1]) == pytest.approx(left_s / 3600)


# Node, in five seconds: which of its GPUs is full, whose job is on it, what else is there, does its agent answer?


def _of_node(past: Past, node: str, panel: str) -> dict[str, list[dict[str, Any]]]:
    """The answers to a panel, by the column or legend."""
    asked = _asked(past, _by_title("Node"), {"cluster": CLUSTER, "node": node})
    return {one.name: one.result for one in asked if one.panel == panel}


def test_the_node_lists_each_rank_on_its_gpu_with_job_and_owner(past: Past) -> None:
    holds = _of_node(past, FIRST, "Ranks on each GPU")["Holds"]

    assert {(one["metric"]["gpu"], one["metric"]["rank"]) for one in holds} == {(str(n), str(n)) for n in range(8)}
    assert {(one["metric"]["job_id"], one["metric"]["job_name"], one["metric"]["user_name"]) for one in holds} == {
        (LEAKS, "pretrain-0", "ada")
    }


def test_the_node_has_a_row_of_its_heat_map_for_each_gpu(past: Past) -> None:
    (rows,) = _of_node(past, FIRST, "Memory in use, by GPU").values()
    assert [one["metric"]["row"] for one in rows] == [f"{gpu:02}" for gpu in range(8)]


def test_the_node_tells_other_processes_from_unattributed_memory(past: Past) -> None:
    table = _of_node(past, LAST, "Memory of each GPU")
    last = {
        column: {one["metric"]["gpu"]: float(one["value"][1]) for one in result} for column, result in table.items()
    }

    assert last["Other processes"]["0"] == 12 * GIB
    assert last["Unattributed"]["0"] == last["In use"]["0"] - 12 * GIB == GIB // 2
    assert last["Other processes"]["1"] == 0


def test_the_parts_of_each_gpu_of_a_node_add_up_to_what_is_in_use(past: Past) -> None:
    table = _of_node(past, FIRST, "Memory of each GPU")
    parts = {column: {one["metric"]["gpu"]: float(one["value"][1]) for one in table[column]} for column in table}

    for gpu, in_use in parts["In use"].items():
        assert sum(parts[part][gpu] for part in ("Ranks", "Other processes", "Unattributed")) == pytest.approx(in_use)


def test_an_agent_that_does_not_answer_is_shown_on_fleet_and_on_its_node(past: Past) -> None:
    asked = next(asked for asked in _asked(past, _by_title("Fleet"), {}) if asked.name == "Last answer")
    assert [series["metric"]["hostname"] for series in asked.result] == [SILENT]
    ((agent,),) = _of_node(past, SILENT, "Agent").values()
    assert agent["values"][-1][1] == "0"


# Incidents, in five seconds: what is open, how bad is it, whose is it, and may the policy act?


def test_incidents_are_those_of_the_chosen_owners(past: Past) -> None:
    def listed(wanted: dict[str, str]) -> set[str]:
        asked = next(asked for asked in _asked(past, _by_title("Incidents"), wanted) if asked.panel == "Open now")
        return {series["metric"]["job_id"] for series in asked.result}

    assert listed({}) == {JOBS[Plot.LEAK], JOBS[Plot.FRAGMENTATION], JOBS[Plot.OUTSIDE_ALLOCATOR]}
    assert listed({"user": "ada"}) == {LEAKS}


# Rank, in five seconds: what fills its GPU, what grows, and since when?


def test_the_composition_of_a_rank_adds_up_to_the_peak_of_its_profile(past: Past) -> None:
    asked = list(_asked(past, _by_title("Rank and GPU"), {"cluster": CLUSTER, "job_id": LEAKS, "rank": "1"}))
    parts = next(one.result for one in asked if one.panel == "Composition at the peak")
    peak = next(one.result for one in asked if one.name == "allocated, peak")

    assert {series["metric"]["category"] for series in parts} >= {"parameters", "activations", "optimizer state"}
    assert sum(float(series["values"][-1][1]) for series in parts) == pytest.approx(float(peak[0]["values"][-1][1]))


# Efficiency, in five seconds: how much of the GPU memory was needed, and whose jobs left the most?


def test_efficiency_lists_the_jobs_of_the_chosen_user(past: Past) -> None:
    asked = _asked(past, _by_title("Efficiency"), {"user": "ada"})
    jobs = next(one.result for one in asked if one.panel == "By job")
    assert {series["metric"]["user_name"] for series in jobs} == {"ada"}


def test_a_job_id_that_is_made_to_break_out_of_its_quotes_stays_a_value(past: Past) -> None:
    hostile = one('x"} or tidegauge_job_info{job_id=~".*')

    assert past.at_the_end(interpolated('tidegauge_job_info{job_id="$job_id"}', {"job_id": hostile})) == []
