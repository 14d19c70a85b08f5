"""Makes ``schemas.json`` again: ``python tests/data/grafana/make_schemas.py`` (needs npm and the registry it asks)."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

GRAFANA_SCHEMA: Final = "@grafana/schema@13.2.3"
GENERATOR: Final = "ts-json-schema-generator@2.4.0"
TYPES: Final = Path("node_modules/@grafana/schema/dist/types/raw")
PANELS: Final = {
    "annolist": "annotationslist",
    "bargauge": "bargauge",
    "heatmap": "heatmap",
    "stat": "stat",
    "state-timeline": "statetimeline",
    "table": "table",
    "text": "text",
    "timeseries": "timeseries",
}
"""Types of panels that the dashboards use, and what the package calls them."""

Schema = dict[str, Any]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "package.json").write_text("{}", encoding="utf-8")
        _run(folder, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", GRAFANA_SCHEMA, GENERATOR)
        made = {
            "made_from": GRAFANA_SCHEMA,
            "dashboard": _with_prometheus_annotations(
                _schema(folder, TYPES / "dashboard/x/types.gen.d.ts", "Dashboard")
            ),
            "options": {panel: _schema(folder, _panel(folder, name), "Options") for panel, name in PANELS.items()},
            "custom": {
                panel: _schema(folder, _panel(folder, name), "FieldConfig")
                for panel, name in PANELS.items()
                if "export interface FieldConfig" in (folder / _panel(folder, name)).read_text(encoding="utf-8")
            },
        }
    text = json.dumps(made, sort_keys=True, separators=(",", ":")).replace('},"', '},\n"')
    (Path(__file__).parent / "schemas.json").write_text(text + "\n", encoding="utf-8")


def _panel(folder: Path, name: str) -> Path:
    return next((folder / TYPES / "composable" / name / "panelcfg/x").glob("*types.gen.d.ts")).relative_to(folder)


def _schema(folder: Path, path: Path, name: str) -> Schema:
    options = ("--path", str(path), "--type", name, "--no-type-check", "--expose", "all")
    made: Schema = _without_words(json.loads(_run(folder, "npx", "ts-json-schema-generator", *options)))
    return made


def _without_words(node: Any) -> Any:
    """Descriptions and defaults check nothing and are most of the size. A property may be *called* description."""
    if isinstance(node, list):
        return [_without_words(each) for each in node]
    if not isinstance(node, dict):
        return node
    return {
        key: {name: _without_words(each) for name, each in value.items()}
        if key in ("properties", "definitions")
        else _without_words(value)
        for key, value in node.items()
        if key not in ("description", "default", "$comment")
    }


def _with_prometheus_annotations(schema: Schema) -> Schema:
    """Grafana's type of an annotation knows its own annotations only ("TODO.. this should just be a normal query
    target"): what the Prometheus plugin reads beside it is added, nothing else is let through."""
    text: Schema = {"type": "string"}
    query: Schema = schema["definitions"]["AnnotationQuery"]
    query["properties"] |= {"titleFormat": text, "textFormat": text, "tagKeys": text}
    query["properties"]["useValueForTime"] = {"type": "boolean"}
    of_prometheus = {
        "type": "object",
        "additionalProperties": False,
        "required": ["expr", "refId"],
        "properties": {"expr": text, "refId": text, "interval": text},
    }
    query["properties"]["target"] = {"anyOf": [query["properties"]["target"], of_prometheus]}
    return schema


def _run(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    main()
