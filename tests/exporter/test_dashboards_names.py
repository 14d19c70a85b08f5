"""Every series, label, variable and dashboard that a dashboard names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from grafana_variables import Chosen, all_of_them, interpolated, of_the_range, one, options_of_query_result
from promql_labels import SERIES, UnknownLabelError, labels_of_result, selectors
from tidegauge_exporter.dashboards.catalogue import dashboards
from tidegauge_exporter.dashboards.model.dashboard import Dashboard
from tidegauge_exporter.dashboards.model.panels import Panel
from tidegauge_exporter.dashboards.model.queries import Marks, Query
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.model.variables import JOB_ID, JobVariable, LabelValues, VariableChoice
from tidegauge_exporter.links import JOB, RANK

BOARDS = dashboards("https://tidegauge.example.org")
boards = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
OF_GRAFANA = {"__url_time_range", "__data", "__field", "__value"}
"""What links may use beside the dashboard's own variables."""


def values_of(board: Dashboard) -> dict[str, Chosen]:
    values = of_the_range(7200, 30)
    for variable in board.variables:
        if isinstance(variable, VariableChoice):
            values[variable.name] = Chosen(*variable.options[0])
        elif isinstance(variable, LabelValues):
            values[variable.name] = all_of_them(".+") if variable.with_all else one("7")
        elif isinstance(variable, JobVariable):
            values[variable.name] = one("7")
    return values


def queries_of(board: Dashboard) -> Iterator[tuple[str, Query, str]]:
    """Where it is from, the query, and the expression with variables filled in."""
    values = values_of(board)
    for panel in board.panels():
        for query in panel.all_queries():
            yield panel.title, query, interpolated(query.expression, values)
    for mark in board.marks:
        if isinstance(mark, Marks):
            yield mark.name, mark.query, interpolated(mark.query.expression, values)


@boards
def test_every_series_and_label_of_every_expression_exists(board: Dashboard) -> None:
    for where, query, expression in queries_of(board):
        labels = labels_of_result(expression)
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels, where


@boards
def test_every_selector_is_of_the_chosen_clusters_and_on_job_dashboards_of_the_chosen_job(board: Dashboard) -> None:
    for where, _, expression in queries_of(board):
        for selector in selectors(expression):
            assert selector.name is not None
            told = {matcher.name for matcher in selector.matchers.matchers}
            known = SERIES[selector.name]
            assert "cluster" not in known or "cluster" in told, (where, selector.prettify())
            if board.uid in (JOB, RANK) and "job_id" in known:
                assert {"job_id", "attempt"} <= told, (where, selector.prettify())


@boards
def test_columns_of_tables_are_labels_of_all_their_queries_or_of_one_that_brings_a_name(board: Dashboard) -> None:
    values = values_of(board)
    for panel in board.panels():
        if not isinstance(panel, Table):
            continue
        found = [labels_of_result(interpolated(query.expression, values)) for query in panel.all_queries()]
        for column in panel.columns:
            if isinstance(column, Label):
                assert any(column.label in labels for labels in found), (panel.title, column.title)
        # Rows are put together by the labels that all queries have: without the extra names they are the same.
        keys = [labels - {"user_name", "job_name"} for labels in found]
        assert len(set(keys)) == 1 or len(found) == 1, (panel.title, keys)


@boards
def test_variables_ask_for_series_and_labels_that_exist_and_for_variables_before_them(board: Dashboard) -> None:
    values = of_the_range(7200, 30)
    for variable in board.variables:
        if isinstance(variable, LabelValues):
            assert variable.value_of in labels_of_result(interpolated(variable.selector, values)), variable.name
        if isinstance(variable, JobVariable):
            assert labels_of_result(interpolated(variable.expression, values)) == {"job_id", "shown"}
        values[variable.name] = one("7")


def test_a_job_is_chosen_by_its_own_id_whatever_it_calls_itself() -> None:
    def series(job_id: str, shown: str) -> dict[str, Any]:
        return {"metric": {"job_id": job_id, "shown": shown}, "value": [0, "1"]}

    found = [
        series("4700", "4700 pretrain (ada)"),
        series("4701", "4701  "),
        series("4702", '4702 x",shown="4700 pretrain (ada)'),
        series('local "a"', 'local "a" train'),
    ]
    assert options_of_query_result(JOB_ID.pattern, found) == {
        "4700": "4700 pretrain (ada)",
        "4701": "4701",
        "4702": '4702 x",shown="4700 pretrain (ada)',
        'local "a"': 'local "a" train',
    }


@boards
def test_every_variable_that_is_used_is_there(board: Dashboard) -> None:
    known = {*values_of(board), "datasource"}
    for panel in board.panels():
        for name in re.findall(r"\$\{?([A-Za-z_]\w*)", repr(panel.all_queries())):
            assert name in known, (panel.title, name)


def links_of(panel: Panel) -> list[str]:
    told = panel.to_json().get("fieldConfig", {"defaults": {}, "overrides": []})
    links = list(told["defaults"].get("links", []))
    for override in told["overrides"]:
        links += [link for entry in override["properties"] if entry["id"] == "links" for link in entry["value"]]
    return [link["url"] for link in links]


@boards
def test_links_lead_to_dashboards_that_exist_with_variables_that_they_have(board: Dashboard) -> None:
    there = {other.uid: {variable.name for variable in other.variables} for other in BOARDS}
    own = {variable.name for variable in board.variables}
    for panel in board.panels():
        for url in links_of(panel):
            parts = urlsplit(url)
            used = set(re.findall(r"\$\{(\w+)", url))
            assert used <= own | OF_GRAFANA, (panel.title, url)
            if parts.netloc:
                continue
            uid = parts.path.removeprefix("/d/")
            handed_over = {name.removeprefix("var-") for name, _ in parse_qsl(parts.query) if name.startswith("var-")}
            handed_over |= set(re.findall(r"\$\{(\w+):queryparam\}", url))
            assert handed_over <= there[uid], (panel.title, url)
            assert there[uid] - handed_over <= {"horizon"}, f"{panel.title}: {url} leaves a variable to chance"
            assert "__url_time_range" in used, (panel.title, url)


@boards
def test_links_use_labels_that_the_row_or_the_curve_has_and_escape_them(board: Dashboard) -> None:
    values = values_of(board)
    for panel in board.panels():
        found = [labels_of_result(interpolated(query.expression, values)) for query in panel.all_queries()]
        for url in links_of(panel):
            for source, label, rest in re.findall(r"\$\{__(data\.fields|field\.labels)\.(\w+)([^}]*)\}", url):
                assert all(label in labels for labels in found), (panel.title, url)
                assert rest == ":percentencode", (panel.title, url)
                if isinstance(panel, Table):
                    assert source == "data.fields", (panel.title, url)
                    columns = {column.label for column in panel.columns if isinstance(column, Label)}
                    assert label in columns, f"{panel.title}: a column that is filtered out cannot be linked by"


@boards
def test_numbers_of_incidents_are_columns_of_whole_numbers(board: Dashboard) -> None:
    for panel in board.panels():
        if isinstance(panel, Table):
            for column in panel.columns:
                if isinstance(column, Value) and column.title == "Number":
                    assert column.decimals == 0
                    assert column.links, panel.title


@pytest.mark.parametrize(
    "expression",
    [
        "tidegauge_no_such_metric",
        "tidegauge_rank_allocated_bytes{ranks='1'}",
        "sum by (rank) (cluster_job:tidegauge_ranks:count)",
        "tidegauge_rank_allocated_bytes * on (cause) group_left () tidegauge_job_info",
        "tidegauge_job_ranks * on (job_id) group_left (pid) tidegauge_job_info",
    ],
)
def test_a_name_that_does_not_exist_is_found(expression: str) -> None:
    with pytest.raises(UnknownLabelError):
        labels_of_result(expression)
