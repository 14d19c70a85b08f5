"""Writes the page for a server that is up when Tidegauge is down: ``python -m tidegauge_exporter.runbooks FILE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tidegauge_exporter.runbooks.page import runbooks_html
from tidegauge_exporter.runbooks.values import CONTACT


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tidegauge_exporter.runbooks", description="Write the runbooks.")
    parser.add_argument("file", metavar="FILE", type=Path, help="an HTML page that needs no other file")
    parser.add_argument("--contact", default=CONTACT, metavar="TEXT", help="whom to call (default: %(default)s)")
    args = parser.parse_args(arguments)
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_text(runbooks_html(args.contact), encoding="utf-8")
    print(args.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
