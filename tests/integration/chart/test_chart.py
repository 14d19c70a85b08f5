"""The chart, linted and rendered by Helm with the values of every kind of site, and looked at as a server would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from integration.chart.checks import problems
from integration.chart.mutants import DEFINITION, OUR_OWN, TRIED_ON_A_SERVER, Mutant, mutated
from integration.chart.rendering import CHART, NAMESPACE, VALUES_FILES, Object, render, values_of
from integration.chart.schema_checks import definitions

VERSIONS = ("1.30", "1.33", "1.37")
"""The oldest that the chart says it works with, one between, and the newest whose schemas there are."""
WARNING = 2
MADE_BY_THE_SITE = {
    "full": ["Secret/slack"],
    "given-certificate": [
        "Secret/tidegauge-tls", "Secret/tidegauge-key", "PersistentVolumeClaim/tidegauge-state",
        "ServiceAccount/gpu-memory-head", "ServiceAccount/gpu-memory-agent", "ServiceAccount/gpu-memory-controller",
    ],
    "web-access": [
        "Secret/tidegauge-web", "Secret/tidegauge-web-tls", "Secret/tidegauge-scrape", "Secret/tidegauge-test",
    ],
}  # fmt: skip
FIRST_WITH_POLICIES = 36
"""MutatingAdmissionPolicy is admissionregistration.k8s.io/v1 from Kubernetes 1.36 on."""


@pytest.fixture(scope="module")
def everything() -> list[Object]:
    return render(values_of(CHART / "ci" / "full-values.yaml")).objects


def name_of_site(path: Path) -> str:
    return path.name.removesuffix("-values.yaml")


@pytest.mark.parametrize("path", VALUES_FILES, ids=name_of_site)
@pytest.mark.parametrize("version", VERSIONS)
def test_helm_has_nothing_to_say_against_it(path: Path, version: str) -> None:
    report = helm_python.lint(
        str(CHART), values_of(path), strict=True, namespace=NAMESPACE, kube_version=f"v{version}.0"
    )
    assert [message for message in report["messages"] if message["severity"] >= WARNING] == []
    assert report["errors"] == []


@pytest.mark.parametrize("path", sorted((CHART / "crds").glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_charts_definitions_are_whole(path: Path, version: str) -> None:
    """Helm installs them as they are, before it renders anything."""
    assert problems([yaml.safe_load(path.read_text(encoding="utf-8"))], version) == []


@pytest.mark.parametrize("path", VALUES_FILES, ids=name_of_site)
@pytest.mark.parametrize("version", VERSIONS)
def test_chart_renders_objects_that_the_api_server_accepts(path: Path, version: str) -> None:
    values = values_of(path)
    objects = render(values).objects
    if values.get("injection", {}).get("mode") == "policy" and int(version.partition(".")[2]) < FIRST_WITH_POLICIES:
        objects = [thing for thing in objects if not thing["kind"].startswith("MutatingAdmissionPolicy")]
    assert problems(objects, version, given=MADE_BY_THE_SITE.get(name_of_site(path), ())) == []


def test_the_files_of_values_are_for_all_that_the_chart_can_make() -> None:
    kinds = {thing["kind"] for path in VALUES_FILES for thing in render(values_of(path)).objects}
    written = set()
    for path in (CHART / "templates").rglob("*.yaml"):
        written |= {line.split()[1] for line in path.read_text("utf-8").splitlines() if line.startswith("kind: ")}
    named = {kind for kind in written if "{{" not in kind}
    assert named - kinds == set()


def test_the_checks_have_nothing_against_the_definitions_that_they_use(everything: list[Object]) -> None:
    assert problems([*everything, *definitions(), yaml.safe_load(DEFINITION)], "1.36") == []


@pytest.mark.parametrize("mutant", [*TRIED_ON_A_SERVER, *OUR_OWN], ids=lambda mutant: mutant.mistake)
def test_the_checks_see(mutant: Mutant, everything: list[Object]) -> None:
    assert problems(mutated(everything, mutant), "1.36") != []


def test_all_kinds_of_mistakes_that_were_tried_are_there() -> None:
    assert len({mutant.mistake for mutant in TRIED_ON_A_SERVER}) == 18


@pytest.mark.parametrize("path", VALUES_FILES, ids=name_of_site)
def test_two_releases_in_one_cluster_do_not_want_the_same_object(path: Path) -> None:
    values = values_of(path) | {"monitoring": {}}

    def names(namespace: str) -> set[Any]:
        objects = render(values, release="tidegauge", namespace=namespace).objects
        return {(thing["kind"], thing["metadata"].get("namespace"), thing["metadata"]["name"]) for thing in objects}

    shared = names("first") & names("second")
    assert {namespace for _, namespace, _ in shared} <= set(values.get("rbac", {}).get("namespaces", ()))
    assert not any("first" not in name and namespace is None for _, namespace, name in names("first"))
