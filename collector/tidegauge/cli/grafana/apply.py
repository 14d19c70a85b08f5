"""``tidegauge grafana apply``: folder, data source and dashboards of a Grafana, brought up to date."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidegauge import __version__
from tidegauge.cli.arguments import add_examples, add_json
from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import BAD_NEWS, FINE
from tidegauge.cli.grafana.access import add_grafana_arguments, grafana_of, web_address
from tidegauge.cli.output import print_json, print_table, progress

if TYPE_CHECKING:
    from tidegauge_exporter.grafana.apply import ApplyStep

HEADER = ("what", "uid", "change", "why")


def prepare(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    add_grafana_arguments(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prometheus-url", type=web_address, metavar="URL",
        help="URL of Prometheus as the Grafana server reaches it: create or update the Tidegauge data source",
    )  # fmt: skip
    source.add_argument("--data-source", metavar="UID", help="use this existing Prometheus data source (uid or name)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_json(parser)
    add_examples(
        parser,
        "tidegauge grafana apply --url https://grafana.example --prometheus-url http://prometheus:9090 --dry-run",
        "tidegauge grafana apply --data-source prometheus",
    )


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    with grafana_of(args, settings) as grafana, progress("grafana apply") as say:
        from tidegauge_exporter.dashboards.catalogue import dashboards
        from tidegauge_exporter.grafana.apply import Wanted, carry_out, look, plan

        models = tuple(dashboard.to_json() for dashboard in dashboards(settings.public_url))
        wanted = Wanted(models, args.prometheus_url, args.data_source)
        say(f"reading {grafana.url}")
        steps: Sequence[ApplyStep] = plan(wanted, look(grafana, wanted))
        if not args.dry_run:
            done: list[ApplyStep] = []
            try:
                for step in carry_out(grafana, tuple(steps), message=f"tidegauge {__version__}"):
                    done.append(step)
                    say(f"{len(done)} of {len(steps)}")
            except Exception:
                _print(args, grafana.url, done)  # so far; the error follows
                raise
            steps = done
    _print(args, grafana.url, steps)
    return BAD_NEWS if any(step.change.value == "refused" for step in steps) else FINE


def _print(args: argparse.Namespace, url: str, steps: Sequence[ApplyStep]) -> None:
    if args.json:
        told = [{"what": step.what, "uid": step.uid, "change": step.change.value, "why": step.why} for step in steps]
        print_json({"grafana": url, "dry_run": args.dry_run, "steps": told})
        return
    words = {"create": "created", "update": "changed"}
    if args.dry_run:
        words = {"create": "would be created", "update": "would be changed"}
    rows = [(step.what, step.uid, words.get(step.change.value, step.change.value), step.why or "-") for step in steps]
    print_table(HEADER, rows)
    if steps and all(step.change.value == "unchanged" for step in steps):
        print("\nnothing to change")
    elif any(step.change.value == "refused" for step in steps):
        print("\nresolve the refused changes by hand: see the last column")
    elif not args.dry_run:
        print(f"\nfirst dashboard: {url}/d/tidegauge-fleet")
