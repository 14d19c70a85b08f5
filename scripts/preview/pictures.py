"""A picture of a drawn dashboard, taken in a headless Chromium: ``pictures.py FIGURES PAGE.js UID MODE OUT.png``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

WIDTH = 1366
"""Of a common laptop."""
CELL, HEADER, FOOTER = 38, 96, 24
"""Pixels, as in src/page.jsx."""


def main(figures: Path, script: Path, uid: str, mode: str, picture: Path) -> None:
    payload = json.loads((figures / f"{uid}.json").read_text())
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in payload["dashboard"]["panels"])
    with tempfile.TemporaryDirectory() as name:
        page = Path(name) / "page.html"
        page.write_text(_html({**payload, "mode": mode, "width": WIDTH}, script))
        said = _shoot(page, Path(name), picture, height=HEADER + rows * CELL + FOOTER)
    verdict = re.search(r"preview: ([^\"]*)", said)
    if verdict is None or verdict[1] != "0 failed":
        raise SystemExit(f"{uid} was not drawn: {verdict[1] if verdict else said[-3000:]}")
    # 256 colours, chosen by their place in the colour space: seldom ones of a heat map are kept, and files stay small.
    image = Image.open(picture).convert("RGB").quantize(method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    image.save(picture, optimize=True)
    print(f"{picture} {picture.stat().st_size // 1000} kB")


def _html(payload: object, script: Path) -> str:
    def inside(text: str) -> str:
        return text.replace("</script", "<\\/script")

    # Grafana's packages look for what its server writes into the page.
    boot = "window.grafanaBootData={settings:{},user:{}};"
    css = script.with_suffix(".css")
    style = f"<style>{css.read_text()}</style>" if css.exists() else ""
    return (
        f"<!doctype html><meta charset=utf-8>{style}<body style='margin:0'><div id=root></div>"
        f"<script>{boot}window.PREVIEW={inside(json.dumps(payload))}</script>"
        f"<script>{inside(script.read_text())}</script>"
    )


def _shoot(page: Path, work: Path, picture: Path, *, height: int) -> str:
    """Returns what the page said on its console."""
    command = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        "--disable-background-networking", "--virtual-time-budget=8000", "--enable-logging=stderr",
        f"--user-data-dir={work / 'profile'}", f"--window-size={WIDTH},{height}", f"--screenshot={picture.resolve()}",
        page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stderr


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5]))
