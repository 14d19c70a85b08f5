"""``tidegauge grafana export``: dashboards and Prometheus' rules as files, for provisioning without the API."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import FINE, CommandError
from tidegauge.cli.grafana.access import web_address


def prepare(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> int:
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
