"""Writes the rule files: ``python -m tidegauge_exporter.rules DIR [--grafana-url URL] [--runbook-url URL]
[--service-url URL]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegauge_exporter.rules.files import rule_files
from tidegauge_exporter.rules.values import Addresses


def main(arguments: Sequence[str] | None = None) -> int:
    defaults = Addresses()
    parser = argparse.ArgumentParser(
        prog="python -m tidegauge_exporter.rules", description="Write Prometheus' rule files."
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="where to write them; made if it is not there")
    parser.add_argument(
        "--grafana-url", default=defaults.grafana_url, help="where people reach Grafana (default: %(default)s)"
    )
    parser.add_argument(
        "--runbook-url",
        default=defaults.runbook_url,
        help="page of the runbooks, on a server that is up when Tidegauge is down (default: %(default)s)",
    )
    parser.add_argument(
        "--service-url",
        default=defaults.service_url,
        help="where people reach the coordinator's API, which has a page of each job (default: %(default)s)",
    )
    args = parser.parse_args(arguments)
    addresses = Addresses(*(_address(parser, url) for url in (args.grafana_url, args.runbook_url, args.service_url)))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name, text in rule_files(addresses).items():
        (args.folder / name).write_text(text, encoding="utf-8")
        print(args.folder / name)
    return 0


def _address(parser: argparse.ArgumentParser, url: str) -> str:
    """Ends the program for what would break the template or the YAML that it is written into."""
    if not url.startswith(("http://", "https://")) or not url.isprintable() or any(mark in url for mark in ' "{}<>|#'):
        parser.error(f"{url!r} is not an http(s) address")
    return url


if __name__ == "__main__":
    sys.exit(main())
