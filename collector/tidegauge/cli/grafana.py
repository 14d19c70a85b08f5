"""``tidegauge grafana`` installs dashboards and annotations in Grafana, or writes dashboards and rules to files."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge import __version__
from tidegauge.cli.arguments import (
    CONNECTION,
    Subcommand,
    add_examples,
    add_json,
    add_subcommands,
    folder_to_make,
    group,
)
from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import BAD_NEWS, ENVIRONMENT, FINE, CommandError, UsageError, cannot_write, need
from tidegauge.cli.output import print_json, print_table, progress
from tidegauge.cli.service_api import add_api_arguments, ask, ask_story
from tidegauge.cli.times import ago, moment, since_unix_s
from tidegauge.core.units import format_count

if TYPE_CHECKING:
    from tidegauge.settings import Settings
    from tidegauge_exporter.grafana.annotations import AnnotationText
    from tidegauge_exporter.grafana.apply import ApplyStep
    from tidegauge_exporter.grafana.client import GrafanaClient
    from tidegauge_exporter.messages.values import Story

HELP = "install dashboards and annotations in Grafana, or write dashboards and rules to files"
TOKEN_VARIABLE = "TIDEGAUGE_GRAFANA_TOKEN"
MAX_INCIDENTS = 1000
WEEK_S = 7 * 86400.0


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
        "tidegauge grafana apply --url http://grafana:3000 --prometheus-url http://prom:9090 --dry-run",
        "tidegauge grafana apply --data-source prometheus",
    )


def apply(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    with grafana_of(args, settings) as grafana, progress("grafana apply") as say:
        from tidegauge_exporter.dashboards.catalogue import dashboards
        from tidegauge_exporter.grafana.apply import Wanted, carry_out, look, plan

        models = tuple(dashboard.to_json() for dashboard in dashboards(settings.pages_url))
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
                if done:
                    _print_steps(args, grafana.url, done, complete=False)  # so far; the error follows
                raise
            steps = done
    _print_steps(args, grafana.url, steps)
    return BAD_NEWS if any(step.change.value == "refused" for step in steps) else FINE


def _print_steps(args: argparse.Namespace, url: str, steps: Sequence[ApplyStep], *, complete: bool = True) -> None:
    if args.json:
        told = [{"what": step.what, "uid": step.uid, "change": step.change.value, "why": step.why} for step in steps]
        print_json({"grafana": url, "dry_run": args.dry_run, "steps": told})
        return
    words = {"create": "created", "update": "changed"}
    if args.dry_run:
        words = {"create": "would be created", "update": "would be changed"}
    rows = [(step.what, step.uid, words.get(step.change.value, step.change.value), step.why or "-") for step in steps]
    print_table(("what", "uid", "change", "why"), rows)
    if not complete:
        return
    if all(step.change.value == "unchanged" for step in steps):
        print("\nnothing to change")
    elif any(step.change.value == "refused" for step in steps):
        print("\nresolve the refused changes by hand: see the last column")
    elif not args.dry_run:
        print(f"\nfirst dashboard: {url}/d/tidegauge-fleet")


def prepare_export(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    parser.add_argument(
        "folder", type=folder_to_make, metavar="DIR", help="target folder for dashboards, rules and runbooks"
    )
    parser.add_argument(
        "--grafana-url", type=web_address, metavar="URL",
        help="URL of Grafana for links in alerts (default: the setting grafana_url)",
    )  # fmt: skip
    parser.add_argument(
        "--service-url", type=web_address, metavar="URL",
        help="URL of the coordinator's API for links to its web pages (default: the setting public_url)",
    )  # fmt: skip
    parser.add_argument(
        "--runbook-url", type=web_address, metavar="URL",
        help="URL of the runbooks for links in alerts, on a server that is up when Tidegauge is down (default: as "
        "Prometheus serves them on this machine, http://localhost:9090/consoles/tidegauge-runbooks.html)",
    )  # fmt: skip


def export(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    from tidegauge_exporter.dashboards.catalogue import files
    from tidegauge_exporter.rules.files import rule_files
    from tidegauge_exporter.rules.values import Addresses
    from tidegauge_exporter.runbooks.page import runbooks_html

    service_url = args.service_url or settings.pages_url
    examples = Addresses()
    addresses = Addresses(
        args.grafana_url or settings.grafana_url or examples.grafana_url,
        args.runbook_url or examples.runbook_url,
        service_url,
    )
    texts = {Path("dashboards") / name: text for name, text in files(service_url).items()}
    texts |= {Path("rules") / name: text for name, text in rule_files(addresses).items()}
    texts[Path("runbooks") / "tidegauge-runbooks.html"] = runbooks_html(settings.contact)
    for name, text in texts.items():
        path = args.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise CommandError(cannot_write(path, error)) from error
        print(path)
    return FINE


class _NoNotes:
    """A journal that is always empty: annotations that exist already are found in Grafana."""

    def said(self, sink: str, key: str) -> None:
        del sink, key

    def say(self, sink: str, key: str, value: str, *, over: bool = False) -> None:
        del sink, key, value, over


def prepare_annotations(parser: argparse.ArgumentParser) -> None:
    add_api_arguments(parser)
    add_grafana_arguments(parser)
    parser.add_argument("--since", type=ago, default=WEEK_S, metavar="7d", help="how far back (default: 7d)")
    parser.add_argument("--dry-run", action="store_true", help="only list the annotations")


def add_annotations(args: argparse.Namespace) -> int:
    """Add recorded incidents and actions as annotations; a running service with a Grafana token does so by itself."""
    settings = load_settings(args)
    with progress("grafana annotations") as say:
        say("reading incidents")
        stories = _stories(args)
        from tidegauge_exporter.grafana.annotations import annotations_of
        from tidegauge_exporter.links import Links

        links = Links(grafana_url=settings.grafana_url, service_url=settings.pages_url)
        remarks = [one for story in stories for one in annotations_of(story, cluster=settings.cluster, links=links)]
        if not args.dry_run:
            with grafana_of(args, settings) as grafana:
                from tidegauge_exporter.grafana.sink import GrafanaSink

                sink = GrafanaSink(grafana, _NoNotes(), cluster=settings.cluster, links=links)
                for number, story in enumerate(stories, start=1):
                    say(f"incident {story.incident.number}, {number} of {len(stories)}")
                    sink.take([story])
    _print_annotations(args, remarks)
    return FINE


def _stories(args: argparse.Namespace) -> Sequence[Story]:
    listed = ask(args, f"/api/v1/incidents?all=1&since={since_unix_s(args.since)}&limit={MAX_INCIDENTS}")
    return [ask_story(args, int(raw["number"])) for raw in listed["incidents"]]


def _print_annotations(args: argparse.Namespace, remarks: Sequence[AnnotationText]) -> None:
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
    print_table(("from", "to", "tags"), rows)
    print(f"\n{'dry run:' if args.dry_run else 'now in Grafana:'} {format_count(len(rows), 'annotation')}")


def add_grafana_arguments(parser: argparse.ArgumentParser) -> None:
    connection = group(parser, CONNECTION)
    connection.add_argument(
        "--url", type=web_address, metavar="URL", help="URL of Grafana (default: the setting grafana_url)"
    )
    connection.add_argument(
        "--token-file", type=Path, metavar="FILE",
        help=f"file (mode 0600) with the token of a service account (default: the setting grafana_token_file, then "
        f"{TOKEN_VARIABLE} in the environment)",
    )  # fmt: skip


def web_address(text: str) -> str:
    """An HTTP URL that is safe in links, rules and dashboards. Raises ``argparse.ArgumentTypeError``."""
    from tidegauge.settings import is_web_address

    if not is_web_address(text):
        raise argparse.ArgumentTypeError("not a URL such as https://grafana.example, without user and password")
    return text.rstrip("/")


@contextmanager
def grafana_of(args: argparse.Namespace, settings: Settings) -> Iterator[GrafanaClient]:
    """A client of Grafana, whose errors become ``CommandError``, also inside the block."""
    need("grafana_api", extra="grafana", what="talking to Grafana")
    from tidegauge_exporter.grafana.client import GrafanaClient
    from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

    url = args.url or settings.grafana_url
    if url is None:
        raise UsageError("no Grafana URL: use --url https://grafana.example, or the setting grafana_url")
    try:
        client = GrafanaClient(url, token=_token(args, settings))
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        yield client
    except (RefusedError, RetryLaterError) as error:
        raise CommandError(str(error), exit_code=ENVIRONMENT) from error
    finally:
        client.close()


def _token(args: argparse.Namespace, settings: Settings) -> str:
    from tidegauge.secrets import SecretError, read_secret

    try:
        token = read_secret(args.token_file or settings.grafana_token_file, os.environ, TOKEN_VARIABLE)
    except SecretError as error:
        raise UsageError(str(error)) from error
    if token is None:
        raise UsageError(
            "Grafana needs the token of a service account: create one under Administration, Users and access, Service "
            f"accounts, save it to a file with mode 0600, and pass that with --token-file (or set {TOKEN_VARIABLE})"
        )
    return token


SUBCOMMANDS = {
    "apply": Subcommand("create or update folder, data source and dashboards in Grafana", prepare_apply, apply),
    "annotations": Subcommand(
        "add recorded incidents and actions to the dashboards as annotations", prepare_annotations, add_annotations
    ),
    "export": Subcommand("write dashboards and Prometheus rules to files", prepare_export, export),
}


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_subcommands(parser, SUBCOMMANDS)


def run(args: argparse.Namespace) -> int:
    return SUBCOMMANDS[args.what].run(args)
