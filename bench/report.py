"""How fast the report of a snapshot with 100,000 events and 10,000 blocks is made and opens, and how large it is.

    python bench/report.py [--steps 640] [--opens 5]

The made-up job of the tests (`tests/report_contents.py`), in a headless Chromium on this machine: milliseconds from the
start of the navigation until every part is drawn, median and worst of some openings. Exit code 1: more than 2 s.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from datetime import date
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from opened_page import DRAWN, opened  # noqa: E402

from browser import Tab  # noqa: E402
from report_contents import content  # noqa: E402
from tidegauge_exporter.reports.report import render_report  # noqa: E402

MAX_OPEN_MS = 2000.0
BUFFERS = 9_000


def main(steps: int, opens: int) -> int:
    about = content(steps=steps, buffers=BUFFERS)
    assert about.late is not None, "the made-up report has a snapshot"
    began_s = time.perf_counter()
    html = render_report(about)
    made_s = time.perf_counter() - began_s
    times_ms = opened(html, opens, drawn_ms)
    told = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "events": len(about.late),
        "blocks": sum(len(segment.blocks) for segment in about.late.end or ()),
        "bytes": len(html.encode()),
        "made_s": round(made_s, 3),
        "opens_median_ms": round(statistics.median(times_ms)),
        "opens_worst_ms": round(max(times_ms)),
    }
    print(json.dumps(told, indent=2))
    return int(max(times_ms) > MAX_OPEN_MS)


def drawn_ms(tab: Tab) -> float:
    """Raises ``SystemExit`` where a part cannot be drawn."""
    failed = tab.ask("document.documentElement.dataset.failed")
    if failed != "" or tab.complaints():
        raise SystemExit(f"not drawn: {failed} {tab.complaints()}")
    return float(tab.ask(DRAWN))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=640, help="training steps in the snapshot: 146 events each")
    parser.add_argument("--opens", type=int, default=5)
    given = parser.parse_args()
    raise SystemExit(main(given.steps, given.opens))
