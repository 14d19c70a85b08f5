"""Writes what Kubernetes needs of other files: the chart's copies of rules and dashboards, settings and policy in its
schema, the table in its README, and deploy/kubernetes/tidegauge.yaml, the chart as plain manifests.

python scripts/render_kubernetes.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

from tidegauge.settings import Settings

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


def schema(text: str) -> str:
    """``text``, the chart's values.schema.json, with the settings and the policy as the service reads them."""
    whole = json.loads(text)
    policy = json.loads((ROOT / "docs" / "policy.schema.json").read_text(encoding="utf-8"))
    below = {f"policy{name}": part for name, part in policy.pop("$defs").items()}
    definitions = {"settings": Settings.model_json_schema(), "policy": policy, **below}
    whole.pop("definitions", None)
    lines = [f'    "{name}": {json.dumps(_without_words(part))}' for name, part in definitions.items()]
    ours = json.dumps(whole, indent=2, ensure_ascii=False).removesuffix("\n}")
    return ours + ',\n  "definitions": {\n' + ",\n".join(lines) + "\n  }\n}\n"


def _without_words(part: Any) -> Any:
    """A schema without what only people read, and with references that hold in the chart's. Go knows no lookahead."""
    if isinstance(part, list):
        return [_without_words(one) for one in part]
    if not isinstance(part, dict):
        if not isinstance(part, str):
            return part
        return part.replace("#/$defs/", "#/definitions/policy").replace(r"(?=\d)", "")
    names = {key: _without_words(value) for key, value in part.get("properties", {}).items()}
    left_out = ("description", "title", "default", "examples", "format", "$schema", "properties")
    rest = {key: _without_words(value) for key, value in part.items() if key not in left_out}
    return rest | ({"properties": names} if names else {})


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
    return "" if value in (None, "", [], {}) else f"`{json.dumps(value) if not isinstance(value, str) else value}`"


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
    texts = [path.read_text(encoding="utf-8") for path in sorted((CHART / "crds").glob("*.yaml"))]
    texts += [text for path, text in sorted(rendered.items()) if not path.endswith("NOTES.txt")]
    documents = [part.strip("\n") for text in texts for part in f"\n{text}".split("\n---") if part.strip()]
    lines = "\n---\n".join(document for document in documents if yaml.safe_load(document)).splitlines()
    return MANIFEST_HEAD + "---\n" + "\n".join(line.rstrip() for line in lines if HELM_ONLY not in line) + "\n"


def main() -> None:
    for path, text in chart_files().items():
        path.write_text(text, encoding="utf-8")
    values = CHART / "values.schema.json"
    values.write_text(schema(values.read_text(encoding="utf-8")), encoding="utf-8")
    page = CHART / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8")), encoding="utf-8")
    (PLAIN / "tidegauge.yaml").write_text(plain_manifest(), encoding="utf-8")


if __name__ == "__main__":
    main()
