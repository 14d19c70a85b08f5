"""Screenshots of ``tidegauge top`` on a made-up cluster: textual's own drawing, as PNG through Chromium.

    python scripts/preview/top_preview.py docs/img

Writes top.png (80 x 24 characters), top-rank.png (120 x 36) and top-node.png (100 x 20), and all of them on a light
terminal into the same folder when ``--light`` is given. Needs ``chromium``.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from rich.console import Console  # noqa: E402
from rich.terminal_theme import TerminalTheme  # noqa: E402

from tidegauge.cli.top.app import TopApp  # noqa: E402
from tidegauge.cli.top.model import Selection  # noqa: E402
from top_world import World  # noqa: E402

SCALE = 2
"""Pixels of the picture for one of the page: sharp on any screen."""
DARK = TerminalTheme(
    (22, 24, 29), (208, 212, 220),
    [(40, 44, 52), (205, 66, 70), (90, 170, 90), (215, 170, 60), (80, 140, 220), (190, 100, 190), (70, 170, 180),
     (208, 212, 220)],
    [(110, 116, 128), (240, 100, 100), (120, 200, 120), (240, 200, 90), (110, 170, 250), (220, 140, 220),
     (110, 205, 215), (255, 255, 255)],
)  # fmt: skip
"""A usual dark terminal, and a light one below: the application chooses no colour but the terminal's own."""
LIGHT = TerminalTheme(
    (252, 252, 250), (40, 44, 52),
    [(40, 44, 52), (200, 40, 41), (60, 130, 60), (200, 150, 20), (50, 100, 190), (150, 70, 160), (20, 130, 140),
     (190, 194, 200)],
    [(110, 116, 128), (225, 70, 70), (80, 155, 80), (220, 175, 50), (80, 130, 220), (180, 100, 190), (50, 160, 170),
     (255, 255, 255)],
)  # fmt: skip


async def screen(size: tuple[int, int], keys: list[str], theme: TerminalTheme) -> str:
    """The SVG of what is seen after ``keys``."""
    world = World().live().tell_incidents()
    service = world.service()
    app = TopApp(service, service.overview(), user="ada", choice=Selection(), job=None)
    async with app.run_test(size=size) as pilot:
        for key in ["", *keys]:
            await pilot.press(*([key] if key else []))
            await app.workers.wait_for_complete()
            await pilot.pause()
        # As App.export_screenshot, which knows one terminal's colours only.
        console = Console(
            width=size[0],
            height=size[1],
            file=io.StringIO(),
            force_terminal=True,
            color_system="truecolor",
            record=True,
        )
        console.print(app.screen._compositor.render_update(full=True))
        return console.export_svg(title="tidegauge top", theme=theme)


def photograph(svg: str, to: Path) -> None:
    """Draw ``svg`` with the fonts of this machine."""
    width, height = map(float, re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg).groups())  # type: ignore[union-attr]
    offline = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    page = f"<!doctype html><style>body{{margin:0;background:#fff0}}svg{{width:{width}px}}</style>{offline}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "page.html").write_text(page)
        subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--force-device-scale-factor={SCALE}", f"--window-size={round(width)},{round(height)}",
             "--default-background-color=00000000", f"--screenshot={to}", str(Path(folder) / "page.html")],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--light", action="store_true", help="as on a light terminal")
    args = parser.parse_args()
    theme, ending = (LIGHT, "-light") if args.light else (DARK, "")
    pictures: tuple[tuple[str, tuple[int, int], list[str]], ...] = (
        ("top", (80, 24), []),
        ("top-rank", (120, 36), ["enter", "enter"]),
        ("top-node", (100, 20), ["c", "end", "enter"]),
    )
    for name, size, keys in pictures:
        photograph(asyncio.run(screen(size, keys, theme)), args.folder / f"{name}{ending}.png")


if __name__ == "__main__":
    main()
