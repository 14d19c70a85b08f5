"""Writes the reference pages that come from the code: docs/metrics.md, docs/settings.md, tables of docs/detector.md.

python scripts/generate_docs.py
"""

from __future__ import annotations

import runpy
from pathlib import Path

from tidegauge.agent.settings import Settings
from tidegauge_exporter import metrics_page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

SETTINGS_INTRODUCTION = """# Settings

<!-- written by scripts/generate_docs.py from agent/settings.py: change it there -->

Nothing needs to be set before Tidegauge is useful. Each setting comes from, in order of precedence:

1. a flag, `--set NAME=VALUE`,
2. the environment, `TIDEGAUGE_<NAME>`,
3. one YAML file: `--config FILE`, else `TIDEGAUGE_CONFIG`, else `~/.config/tidegauge/config.yaml`, else
   `/etc/tidegauge/config.yaml`,
4. the default.

Unknown names are errors. `tidegauge config show` prints what is in force and who decided.
"""


def settings_page() -> str:
    """docs/settings.md, from the fields' docstrings."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "see meaning" if field.default_factory else "-" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{name}` | {default} | {' '.join((field.description or '').split())} |")
    return SETTINGS_INTRODUCTION + "\n" + "\n".join(rows) + "\n"


def main() -> None:
    (DOCS / "metrics.md").write_text(metrics_page.page(), encoding="utf-8")
    (DOCS / "settings.md").write_text(settings_page(), encoding="utf-8")
    runpy.run_path(str(ROOT / "bench" / "detector_parameters.py"), run_name="__main__")


if __name__ == "__main__":
    main()
