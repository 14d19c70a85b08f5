"""Draws docs/img/report-evidence.png: the report of the tests' made-up job, in a headless Chromium.

.venv/bin/python scripts/preview/report_preview.py [--dark] [--width 1180] [--out FILE]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from browser import chromium, open_tab  # noqa: E402
from report_contents import content  # noqa: E402
from tidegauge_exporter.reports.report import render_report  # noqa: E402

LAST_PART = "document.querySelector('[data-part=history]').closest('section').getBoundingClientRect().bottom"
"""The picture ends behind it: tables of words follow."""
MARGIN = 12


def main(out: Path, *, width: int, dark: bool) -> None:
    program = chromium()
    if program is None:
        raise SystemExit("scripts/preview/report_preview.py needs Chromium")
    with tempfile.TemporaryDirectory() as folder, open_tab(program) as tab:
        page = Path(folder) / "report.html"
        page.write_text(render_report(content(buffers=120)), encoding="utf-8")
        tab.screen(width=width, height=900, dark=dark)
        tab.open(page.as_uri())
        bottom = int(tab.ask(LAST_PART)) + MARGIN
        tab.picture(out)
    image = Image.open(out).convert("RGB").crop((0, 0, width, bottom))
    image.quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out} {out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "img" / "report-evidence.png")
    parser.add_argument("--width", type=int, default=1180)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    main(given.out, width=given.width, dark=given.dark)
