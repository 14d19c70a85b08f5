"""``tidegauge grafana annotations`` adds recorded incidents and actions to the dashboards.

A running service with a Grafana token adds new ones by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegauge.cli.config import load_settings
from tidegauge.cli.errors import FINE
from tidegauge.cli.grafana.access import add_grafana_arguments, grafana_of
from tidegauge.cli.output import print_json, print_table, progress
from tidegauge.cli.service_api import add_api_arguments, ask, ask_story
from tidegauge.cli.times import ago, moment, since_unix_s
from tidegauge.core.units import format_count

if TYPE_CHECKING:
    from tidegauge_exporter.grafana.annotations import AnnotationText
    from tidegauge_exporter.messages.values import Story

MAX_INCIDENTS = 1000
WEEK_S = 7 * 86400.0
HEADER = ("from", "to", "tags")


class _NoNotes:
    """A journal that is always empty: annotations that exist already are found in Grafana."""

    def said(self, sink: str, key: str) -> None:
        del sink, key

    def say(self, sink: str, key: str, value: str, *, over: bool = False) -> None:
        del sink, key, value, over


def prepare(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    add_grafana_arguments(parser)
    parser.add_argument("--since", type=ago, default=WEEK_S, metavar="7d", help="how far back (default: 7d)")
    parser.add_argument("--dry-run", action="store_true", help="only list the annotations")


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    with progress("grafana annotations") as say:
        say("reading incidents")
        stories = _stories(args)
        from tidegauge_exporter.grafana.annotations import annotations_of
        from tidegauge_exporter.links import Links

        links = Links(grafana_url=settings.grafana_url, service_url=settings.public_url)
        remarks = [one for story in stories for one in annotations_of(story, cluster=settings.cluster, links=links)]
        if not args.dry_run:
            with grafana_of(args, settings) as grafana:
                from tidegauge_exporter.grafana.sink import GrafanaSink

                sink = GrafanaSink(grafana, _NoNotes(), cluster=settings.cluster, links=links)
                for number, story in enumerate(stories, start=1):
                    say(f"incident {story.incident.number}, {number} of {len(stories)}")
                    sink.take([story])
    _print(args, remarks)
    return FINE


def _stories(args: argparse.Namespace) -> Sequence[Story]:
    listed = ask(args, f"/api/v1/incidents?all=1&since={since_unix_s(args.since)}&limit={MAX_INCIDENTS}")
    return [ask_story(args, int(raw["number"])) for raw in listed["incidents"]]


def _print(args: argparse.Namespace, remarks: Sequence[AnnotationText]) -> None:
    found = [remark.annotation for remark in remarks]
    if args.json:
        told = [{"at_unix_ms": one.at_unix_ms, "end_unix_ms": one.end_unix_ms, "tags": one.tags, "text": one.text}
                for one in found]  # fmt: skip
        print_json({"dry_run": args.dry_run, "annotations": told})
        return
    if not found:
        print("no incidents in this period")
        return
    rows = [
        (
            moment(one.at_unix_ms / 1000),
            "-" if one.end_unix_ms is None else moment(one.end_unix_ms / 1000),
            ", ".join(one.tags),
        )
        for one in found
    ]
    print_table(HEADER, rows)
    print(f"\n{'dry run:' if args.dry_run else 'now in Grafana:'} {format_count(len(rows), 'annotation')}")
