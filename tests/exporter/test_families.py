"""Samples by the rows of the tables, through prometheus_client's text and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric as MetricFamily

from exposition_text import OPENMETRICS, parse_openmetrics, parse_text
from tidegauge_exporter.metrics.families import Metric, MetricKind, Samples, ServiceRegistry, exposition, label_value
from tidegauge_exporter.metrics.table import COORDINATOR_TABLE, NODE_TABLE

TABLE = (
    Metric("test_held_bytes", MetricKind.GAUGE, 'Held: "now", in \\ bytes.\nTwo lines.', ("zone", "job"), "", "bytes"),
    Metric("test_seen_total", MetricKind.COUNTER, "Seen.", ("zone",), ""),
    Metric("test_thing_info", MetricKind.INFO, "Facts.", ("job", "name"), ""),
    Metric("test_plain", MetricKind.GAUGE, "No label.", (), "", "bytes per step"),
)
TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=200),
    st.sampled_from(['"', "\\", "\n", '\\"\\n', "\U0001f30a", '{a="b",}', "# EOF\n", "x" * 500, "\u2028", "", "a,b"]),
)
NUMBERS = st.one_of(st.floats(), st.integers(-(2**63), 2**64))
ROWS = st.lists(
    st.one_of(
        st.tuples(st.just(0), st.tuples(TEXTS, TEXTS), NUMBERS),
        st.tuples(st.just(1), st.tuples(TEXTS), NUMBERS),
        st.tuples(st.just(2), st.tuples(TEXTS, st.one_of(TEXTS, st.none(), st.integers())), st.just(1.0)),
        st.tuples(st.just(3), st.just(()), NUMBERS),
    ),
    max_size=12,
)
Row = tuple[int, tuple[object, ...], float]


def page(rows: Sequence[Row], accept: str = "") -> str:
    samples = Samples(TABLE)
    for index, values, number in rows:
        samples.add(TABLE[index], values, number)
    return exposition(samples.families(), accept).body.decode()


@pytest.mark.parametrize(("accept", "parse"), [("", parse_text), (OPENMETRICS, parse_openmetrics)])
@given(rows=ROWS)
def test_samples_are_read_back_as_they_were_added(
    accept: str, parse: Callable[[str], Iterable[MetricFamily]], rows: list[Row]
) -> None:
    if accept:  # OpenMetrics allows no counter below 0 or that is not a number, and no sample twice
        rows = [row for row in rows if row[0] != 1 or row[2] >= 0]
        rows = list({(row[0], *map(label_value, row[1])): row for row in rows}.values())
    told = [
        (TABLE[index].name, sorted(zip(TABLE[index].labels, map(label_value, values))), float(number))
        for index, values, number in rows
    ]
    read = [
        (sample.name, sorted(sample.labels.items()), float(sample.value))
        for each in parse(page(rows, accept))
        for sample in each.samples
    ]
    assert sorted(map(repr, read)) == sorted(map(repr, told))


@pytest.mark.parametrize("table", [NODE_TABLE, COORDINATOR_TABLE], ids=["node", "coordinator"])
def test_every_row_of_the_tables_is_accepted_by_the_strict_parser(table: Sequence[Metric]) -> None:
    samples = Samples(table)
    for metric in table:
        samples.add(metric, [f"a {label}" for label in metric.labels], 1)
    text = exposition(samples.families(), OPENMETRICS).body.decode()
    families = {each.name: each for each in parse_openmetrics(text)}
    assert len(families) == len(table)
    for metric in table:
        name = metric.name.removesuffix("_total").removesuffix("_info")
        assert (families[name].type, families[name].unit) == (metric.kind.value, metric.exposed_unit)


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        (PROMETHEUS_2, True),
        (PROMETHEUS_3, True),
        ("application/openmetrics-text", True),
        (";;=,=;q=,text/html", False),
    ],
)
def test_openmetrics_is_for_who_asks_for_it(accept: str | None, expected: bool) -> None:
    content_type = exposition([], accept).content_type
    assert content_type.startswith("application/openmetrics-text; version=1.0.0" if expected else "text/plain")


@given(st.text())
def test_any_accept_header_gets_an_answer(header: str) -> None:
    assert "test_plain" in page([(3, (), 1.0)], header)


def test_a_service_tells_of_its_own_process() -> None:
    families = {each.name for each in parse_text(exposition(ServiceRegistry().collect(), None).body.decode())}
    assert {"process_resident_memory_bytes", "process_cpu_seconds", "python_info"} <= families
