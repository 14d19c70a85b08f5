"""``tidegauge grafana`` installs dashboards and annotations in Grafana, or writes dashboards and rules to files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge import __version__
from tidegauge.cli.arguments import Subcommand, add_examples, add_json, add_subcommands
from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import BAD_NEWS, FINE, CommandError
from tidegauge.cli.grafana import annotations as grafana_annotations
from tidegauge.cli.grafana.access import add_grafana_arguments, grafana_of, web_address
from tidegauge.cli.output import print_json, print_table, progress

if TYPE_CHECKING:
    from tidegauge_exporter.grafana.apply import ApplyStep

HELP = "install dashboards and annotations in Grafana, or write dashboards and rules to files"
HEADER = ("what", "uid", "change", "why")


def prepare_apply(parser: argparse.ArgumentParser) -> None:
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


def apply(args: argparse.Namespace) -> int:
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
                _print_steps(args, grafana.url, done)  # so far; the error follows
                raise
            steps = done
    _print_steps(args, grafana.url, steps)
    return BAD_NEWS if any(step.change.value == "refused" for step in steps) else FINE


def _print_steps(args: argparse.Namespace, url: str, steps: Sequence[ApplyStep]) -> None:
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


def prepare_export(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    parser.add_argument("folder", type=Path, metavar="DIR", help="target folder for dashboards/*.json and rules/*.yml")
    parser.add_argument(
        "--grafana-url", type=web_address, metavar="URL",
        help="URL of Grafana for links in alerts (default: the setting grafana_url)",
    )  # fmt: skip
    parser.add_argument(
        "--service-url", type=web_address, metavar="URL",
        help="URL of the coordinator's API for links to reports and runbooks (default: the setting public_url)",
    )  # fmt: skip


def export(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    from tidegauge_exporter.dashboards.catalogue import files
    from tidegauge_exporter.rules.files import rule_files
    from tidegauge_exporter.rules.values import Addresses

    service_url = args.service_url or settings.public_url
    examples = Addresses()
    addresses = Addresses(
        args.grafana_url or settings.grafana_url or examples.grafana_url, service_url or examples.service_url
    )
    texts = {Path("dashboards") / name: text for name, text in files(service_url).items()}
    texts |= {Path("rules") / name: text for name, text in rule_files(addresses).items()}
    for name, text in texts.items():
        path = args.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}") from error
        print(path)
    return FINE


SUBCOMMANDS = {
    "apply": Subcommand("create or update folder, data source and dashboards in Grafana", prepare_apply, apply),
    "annotations": Subcommand(
        "add recorded incidents and actions to the dashboards as annotations",
        grafana_annotations.prepare,
        grafana_annotations.run,
    ),
    "export": Subcommand("write dashboards and Prometheus rules to files", prepare_export, export),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
