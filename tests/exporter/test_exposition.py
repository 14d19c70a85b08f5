"""Our text against prometheus_client's: the same rows, labels and numbers through both must give the same text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily

from exposition_text import OPENMETRICS, parse_openmetrics, parse_text
from tidegauge_exporter.metrics.exposition import Format, Samples, write_number
from tidegauge_exporter.metrics.labels import label_value
from tidegauge_exporter.metrics.negotiation import accepts_gzip, choose_format
from tidegauge_exporter.metrics.rows import Kind, Metric
from tidegauge_exporter.metrics.table import COORDINATOR_TABLE, NODE_TABLE

TABLE = (
    Metric("test_held_bytes", Kind.GAUGE, 'Held: "now", in \\ bytes.\nTwo lines.', ("zone", "job"), "", "bytes"),
    Metric("test_seen_total", Kind.COUNTER, "Seen.", ("zone",), ""),
    Metric("test_thing_info", Kind.INFO, "Facts.", ("job", "name"), ""),
    Metric("test_plain", Kind.GAUGE, "No label.", (), "", "bytes per step"),
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


class Ready:
    """Families that are already made, in the shape that prometheus_client asks for."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self.families = list(families)

    def collect(self) -> list[MetricFamily]:
        return self.families


def family(metric: Metric) -> GaugeMetricFamily | CounterMetricFamily | InfoMetricFamily:
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.exposed_unit)
    if metric.kind is Kind.INFO:
        return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.exposed_unit)


def by_the_library(rows: Sequence[Row], accept: str) -> str:
    families = [family(metric) for metric in TABLE]
    for index, values, number in rows:
        labels, into = [label_value(value) for value in values], families[index]
        if isinstance(into, InfoMetricFamily):
            into.add_metric(labels, {})
        else:
            into.add_metric(labels, number)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ready(each for each in families if each.samples))
    encode, _ = choose_encoder(accept)
    return encode(registry).decode()


def by_us(rows: Sequence[Row], form: Format, only: Sequence[str] = ()) -> str:
    samples = Samples(TABLE)
    for index, values, number in rows:
        samples.add(TABLE[index], values, number)
    return samples.exposition(form, only=only).body.decode()


@given(ROWS)
@example([(3, (), number) for number in (1e6, 999_999.0, 1e16, 1.5e300, 5e-324, -0.0, -1e7, 2**63, 123456789.125)])
@example([(1, ("",), number) for number in (math.inf, -math.inf, math.nan)])
def test_the_text_is_the_one_that_prometheus_client_writes(rows: list[Row]) -> None:
    assert by_us(rows, Format.TEXT) == by_the_library(rows, "")
    assert by_us(rows, Format.OPENMETRICS) == by_the_library(rows, OPENMETRICS)


@given(ROWS)
def test_prometheus_clients_parser_reads_back_what_was_said(rows: list[Row]) -> None:
    told = [
        (TABLE[index].name, sorted(zip(TABLE[index].labels, map(label_value, values))), float(number))
        for index, values, number in rows
    ]
    read = [
        (sample.name, sorted(sample.labels.items()), sample.value)
        for each in parse_text(by_us(rows, Format.TEXT))
        for sample in each.samples
    ]
    assert sorted(map(repr, read)) == sorted(map(repr, told))


@given(st.one_of(st.floats(), st.integers(-(2**64), 2**64)))
def test_a_number_is_read_back_as_it_was(number: float) -> None:
    read = float(write_number(number))
    assert read == float(number) or (math.isnan(read) and math.isnan(number))


@pytest.mark.parametrize("table", [NODE_TABLE, COORDINATOR_TABLE], ids=["node", "coordinator"])
def test_every_row_of_the_tables_is_accepted_by_the_strict_parser(table: Sequence[Metric]) -> None:
    samples = Samples(table)
    for metric in table:
        samples.add(metric, [f"a {label}" for label in metric.labels], 1)
    families = {each.name: each for each in parse_openmetrics(samples.exposition(Format.OPENMETRICS).body.decode())}
    assert len(families) == len(table)
    for metric in table:
        name = metric.name.removesuffix("_total").removesuffix("_info")
        assert (families[name].type, families[name].unit) == (metric.kind.value, metric.exposed_unit)


def test_only_the_metrics_that_are_asked_for_are_written() -> None:
    rows: list[Row] = [(1, ("a",), 1.0), (3, (), 2.0)]
    assert "test_seen" not in by_us(rows, Format.TEXT, only=["test_plain", "other"])
    assert "test_plain" in by_us(rows, Format.TEXT, only=["test_plain", "other"])
    assert by_us(rows, Format.OPENMETRICS, only=["other"]) == "# EOF\n"


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
        (None, Format.TEXT),
        ("", Format.TEXT),
        ("*/*", Format.TEXT),
        (PROMETHEUS_2, Format.OPENMETRICS),
        (PROMETHEUS_3, Format.OPENMETRICS),
        ("application/openmetrics-text", Format.OPENMETRICS),
        ('Application/OpenMetrics-Text; Version="1.0.0"', Format.OPENMETRICS),
        ("application/openmetrics-text;version=2.0.0, text/plain", Format.TEXT),
        ("application/openmetrics-text;version=0.0.1", Format.TEXT),
        ("application/openmetrics-text;q=0", Format.TEXT),
        ("application/openmetrics-text;q=0.2, text/plain;q=0.9", Format.TEXT),
        ("application/openmetrics-text;q=0.2, text/plain;version=1.0.0;q=0.9", Format.OPENMETRICS),
        ("application/openmetrics-text;q=x", Format.OPENMETRICS),
        (";;=,=;q=,text/html", Format.TEXT),
    ],
)
def test_openmetrics_is_for_who_asks_for_it(accept: str | None, expected: Format) -> None:
    assert choose_format(accept) is expected


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, False), ("gzip", True), ("deflate, GZip;q=0.5", True), ("gzip;q=0, identity", False), ("br", False)],
)
def test_an_answer_is_compressed_for_who_takes_it(header: str | None, expected: bool) -> None:
    assert accepts_gzip(header) is expected


@given(st.text())
def test_any_header_gets_an_answer(header: str) -> None:
    assert choose_format(header) in Format
    assert accepts_gzip(header) in (True, False)
