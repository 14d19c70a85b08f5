"""Draws docs/img/web-*.png: the pages of the web UI with the tests' made-up cluster, in a headless Chromium.

.venv/bin/python scripts/preview/web_preview.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from browser import chromium, open_tab  # noqa: E402
from web_world import LEAKY, web_service  # noqa: E402

WIDTH, MAX_HEIGHT = 1366, 1000
PICTURES = {
    "jobs": ("jobs", False), "job": (f"job?job_id={LEAKY}", False), "incident": ("report?incident=1", False),
    "incidents": ("incidents?show=all", False), "nodes": ("nodes", True), "history": ("history", False),
    "policy": ("policy", False), "compare": ("compare", False),
}  # fmt: skip
"""Address of each picture, and whether it is dark."""


def main(folder: Path) -> None:
    program = chromium()
    if program is None:
        raise SystemExit("scripts/preview/web_preview.py needs Chromium")
    with tempfile.TemporaryDirectory() as state, web_service(Path(state)) as service, open_tab(program) as tab:
        for name, (path, dark) in PICTURES.items():
            tab.screen(width=WIDTH, height=900, dark=dark)
            tab.open(f"{service.url}/{path}")
            tab.wait_for("document.documentElement.dataset.site === 'ready'")
            if name == "job":
                tab.wait_for("document.querySelector('canvas[data-drawn]')")
            out = folder / f"web-{name}.png"
            tab.picture(out)
            image = Image.open(out).convert("RGB")
            image = image.crop((0, 0, WIDTH, min(image.height, MAX_HEIGHT)))
            image.quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(out, optimize=True)
            print(f"{out} {out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(ROOT / "docs" / "img")
