"""``python -m tidegauge_exporter.dashboards DIR``: one JSON file a dashboard, for Grafana's file provider."""

from __future__ import annotations

import argparse
from pathlib import Path

from tidegauge_exporter.dashboards.catalogue import files


def main() -> None:
    """Writes the files; a folder that is not there is made. Files of other names are left alone."""
    parser = argparse.ArgumentParser(prog="python -m tidegauge_exporter.dashboards", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="where the files go")
    parser.add_argument(
        "--service-url",
        metavar="URL",
        help="where people reach the coordinator's API (setting public_url), for links to its web pages",
    )
    arguments = parser.parse_args()
    service_url: str | None = arguments.service_url
    if service_url is not None and not service_url.startswith(("http://", "https://")):
        parser.error(f"--service-url: {service_url!r} is not an http(s) address")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, content in files(service_url).items():
        (arguments.folder / name).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
