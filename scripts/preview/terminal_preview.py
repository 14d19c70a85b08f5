"""The output of a command as the picture of a terminal, drawn as ``top_preview.py`` draws it.

    tidegauge job 4711 | python scripts/preview/terminal_preview.py "tidegauge job 4711" docs/img/job.png

The command is shown above its output. Needs ``chromium``.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from rich.console import Console  # noqa: E402
from rich.text import Text  # noqa: E402
from top_preview import DARK, photograph  # type: ignore[import-not-found]  # SAFETY: beside this script # noqa: E402


def main(command: str, picture: Path) -> None:
    shown = Text.from_ansi(f"$ {command}\n{sys.stdin.read().rstrip()}")
    width = max(map(len, shown.plain.split("\n")))
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor", record=True)
    console.print(shown, soft_wrap=True)
    photograph(console.export_svg(title=command, theme=DARK), picture)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
