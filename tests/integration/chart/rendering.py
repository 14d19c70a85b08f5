"""The chart as Helm itself renders it, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import helm_python
import yaml

Object = dict[str, Any]

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "tidegauge"
RELEASE, NAMESPACE = "gpu-memory", "tidegauge-system"
VALUES_FILES = sorted((CHART / "ci").glob("*-values.yaml"))


class Rendered(NamedTuple):
    """What a release is made of."""

    objects: list[Object]
    notes: str

    def one(self, kind: str, ends_with: str = "") -> Object:
        """The only object of this kind whose name ends so."""
        [found] = [o for o in self.objects if o["kind"] == kind and o["metadata"]["name"].endswith(ends_with)]
        return found


def values_of(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = helm_python.values_from_yaml(path.read_text(encoding="utf-8"))
    return values


def render(values: Mapping[str, Any], *, release: str = RELEASE, namespace: str = NAMESPACE) -> Rendered:
    """Raises ``helm_python.HelmError`` for values that schema or templates refuse."""
    with helm_python.Chart.load(str(CHART)) as chart:
        chart.validate_schema(dict(values))
        texts = chart.render(dict(values), name=release, namespace=namespace)
    notes = "".join(text for path, text in texts.items() if path.endswith("NOTES.txt"))
    objects = [
        document
        for path, text in sorted(texts.items())
        if not path.endswith("NOTES.txt")
        for document in yaml.safe_load_all(text)
        if document
    ]
    return Rendered(objects, notes)


def with_registry(**values: Any) -> dict[str, Any]:
    """The least that renders, and ``values``."""
    return {"image": {"registry": "registry.example.org/gpu"}, **values}
