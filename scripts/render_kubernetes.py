"""Writes what Kubernetes needs of other files: the chart's copies of rules and dashboards, the table in its README,
and deploy/kubernetes/tidegauge.yaml, the chart as plain manifests.

python scripts/render_kubernetes.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "tidegauge"
OBSERVABILITY = ROOT / "deploy" / "observability"
PLAIN = ROOT / "deploy" / "kubernetes"
NAMESPACE = "tidegauge"

BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
MANIFEST_HEAD = f"""# Made by scripts/render_kubernetes.py from helm/tidegauge and values.yaml beside it; edit those.
# How to use it: README.md.
---
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    # The agents look into other pods' processes (hostPID, CAP_SYS_PTRACE).
    pod-security.kubernetes.io/enforce: privileged
"""
HELM_ONLY = "app.kubernetes.io/managed-by: Helm"
"""True of releases only: with it Helm would take these objects for its own."""


def chart_files() -> dict[Path, str]:
    """What the chart needs of deploy/observability, by where it belongs: a chart reads nothing outside its folder."""
    found = [*OBSERVABILITY.glob("prometheus/rules/*.yml"), *OBSERVABILITY.glob("grafana/dashboards/*.json")]
    return {CHART / "files" / path.name: path.read_text(encoding="utf-8") for path in sorted(found)}


def readme(text: str) -> str:
    """``text``, the chart's README, with its table as values.schema.json and values.yaml have it."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    lines = ["| value | default | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {default} | {meaning} |" for name, default, meaning in _rows(schema, defaults)]
    before, rest = text.split(BEGIN)
    return "\n".join([before + BEGIN, *lines, END + rest.split(END)[1]])


def _rows(schema: Mapping[str, Any], defaults: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    for name, about in schema["properties"].items():
        below = about.get("properties")
        if below:
            yield f"{prefix}{name}", "", _cell(about["description"])
            yield from _rows(about, defaults[name], f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _default(defaults[name]), _cell(about["description"] + _choice(about))


def _default(value: object) -> str:
    return "" if value in ("", [], {}) else f"`{json.dumps(value) if not isinstance(value, str) else value}`"


def _choice(about: Mapping[str, Any]) -> str:
    words = about.get("enum", ())
    return f" One of {', '.join(f'`{word}`' for word in words)}." if len(words) > 1 else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def plain_manifest() -> str:
    """The chart without Helm."""
    values = helm_python.values_from_yaml((PLAIN / "values.yaml").read_text(encoding="utf-8"))
    with helm_python.Chart.load(str(CHART)) as chart:
        rendered: Mapping[str, str] = chart.render(values, name="tidegauge", namespace=NAMESPACE)
    texts = [text for path, text in sorted(rendered.items()) if not path.endswith("NOTES.txt")]
    documents = [part.strip("\n") for text in texts for part in f"\n{text}".split("\n---") if part.strip()]
    lines = "\n---\n".join(document for document in documents if yaml.safe_load(document)).splitlines()
    return MANIFEST_HEAD + "---\n" + "\n".join(line.rstrip() for line in lines if HELM_ONLY not in line) + "\n"


def main() -> None:
    for path, text in chart_files().items():
        path.write_text(text, encoding="utf-8")
    page = CHART / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8")), encoding="utf-8")
    (PLAIN / "tidegauge.yaml").write_text(plain_manifest(), encoding="utf-8")


if __name__ == "__main__":
    main()
