"""Values: what is refused and in which words, and that schema, defaults, README and rendered files tell the same."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml

from integration.chart.rendering import CHART, ROOT, render, with_registry

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
MAKER = runpy.run_path(str(ROOT / "scripts" / "render_kubernetes.py"))


def nested(path: str, value: object) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("injection.mode", "sidecar"),
        ("injection.timeoutSeconds", 30),
        ("injection.certificates.mode", "letsencrypt"),
        ("injection.image.tag", "latest"),
        ("injection.resources", {"memory": "64Mi"}),
        ("injection.resources", {"limits": {"memory": "2GiB"}}),
        ("workloads.kinds", ["Deployment"]),
        ("workloads.kinds", []),
        ("workloads.requeue", True),
        ("rbac.namespaces", ["Team A"]),
        ("image.digest", "sha256:12"),
        ("image.pullPolicy", "Sometimes"),
        ("head.persistence.size", "5 GB"),
        ("head.resources.limits", {"memory": "2GiB"}),
        ("head.token.key", ""),
        ("webAccess.files", []),
        ("webAccess.files", ["tls.key"]),
        ("webAccess.tls", True),
        ("webAccess.admins", ["ada, grace"]),
        ("webAccess.token", "tg_a"),
        ("head.replicas", 2),
        ("agent.podResources.hostPath", "kubelet"),
        ("agent.nodeSelector", ["gpu"]),
        ("controller.replicas", 0),
        ("controller.logLevel", "loud"),
        ("monitoring.monitors.interval", "often"),
        ("settings.poll_periods", 1),
        ("settings.poll_period_s", "often"),
        ("policy.modes", "act"),
        ("policy.mode", "acts"),
        ("commonLabels", {"app.kubernetes.io/name": "mine"}),
        ("publicUrl", "tidegauge.example.org"),
        ("cluster", ""),
        ("colour", "blue"),
    ],
)
def test_a_bad_value_is_refused_by_name(path: str, value: object) -> None:
    values = with_registry() | nested(path, value)
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    said = str(refused.value)
    *above, last = path.split(".")
    assert last in said
    assert all(part in said for part in above)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "image.registry is not set: Tidegauge publishes no images"),
        (
            {"image": {"registry": "registry.example.org", "digest": f"sha256:{64 * '0'}"}},
            "image.agentDigest go together",
        ),
        (with_registry(controller={"enabled": False}), "choose injection.mode policy or none"),
        (with_registry(injection={"certificates": {"mode": "secret"}}), "set secretName"),
        (
            with_registry(injection={"mode": "policy", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}),
            "requests and limits that are alike",
        ),
        (with_registry(settings={"api_port": 80}), "settings.api_port is set by the chart itself"),
        (with_registry(settings={"state_dir": "/tmp"}), "settings.state_dir is set by the chart itself"),
        (with_registry(settings={"engine_tls": True}), "settings.engine_tls: agents call the address of the Service"),
        (with_registry(policy="mode: [act"), "policy is not a YAML mapping: .*line 1"),
        (with_registry(policy="- act\n"), "policy is not a YAML mapping"),
        (with_registry(policy="mode: act\n"), "Set workloads.actions=true"),
        (with_registry(policy={"version": 1, "mode": "act"}), "Set workloads.actions=true"),
        (with_registry(webAccess={"certificateSecret": "tls"}), "set webAccess.existingSecret to a Secret"),
        (with_registry(webAccess={"existingSecret": "web", "files": ["api-tokens"]}), "set webAccess.tls to none"),
        (
            with_registry(webAccess={"existingSecret": "web"}, settings={"api_admins": "ada"}),
            "settings.api_admins is set by the chart itself",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused_with_what_to_do(values: Mapping[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        render(values)


def described(schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, about in schema.get("properties", {}).items():
        yield prefix + name, about
        yield from described(about, f"{prefix}{name}.")


def test_every_value_is_described_and_has_a_default_that_the_schema_allows() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(DEFAULTS)
    for path, about in described(SCHEMA):
        assert about.get("description"), path
        default: Any = DEFAULTS
        for part in path.split("."):
            assert part in default, f"{path} is not in values.yaml"
            default = default[part]


def test_chart_defaults_are_all_in_the_schema() -> None:
    known = dict(described(SCHEMA))

    def unknown(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in values.items():
            if prefix + name not in known:
                yield prefix + name
            elif isinstance(value, dict) and known[prefix + name].get("properties"):
                yield from unknown(value, f"{prefix}{name}.")

    assert list(unknown(DEFAULTS)) == []


def test_the_charts_copies_of_rules_and_dashboards_are_up_to_date() -> None:
    wanted: dict[Path, str] = MAKER["chart_files"]()
    assert {path: path.read_text(encoding="utf-8") for path in (CHART / "files").iterdir()} == wanted, MAKER["__doc__"]


def test_the_charts_schema_knows_settings_and_policy_as_they_are() -> None:
    text = (CHART / "values.schema.json").read_text(encoding="utf-8")
    assert MAKER["schema"](text) == text, MAKER["__doc__"]


def test_the_charts_readme_is_up_to_date() -> None:
    page = (CHART / "README.md").read_text(encoding="utf-8")
    assert MAKER["readme"](page) == page, MAKER["__doc__"]


def test_the_plain_manifests_are_up_to_date() -> None:
    written = (ROOT / "deploy" / "kubernetes" / "tidegauge.yaml").read_text(encoding="utf-8")
    assert MAKER["plain_manifest"]() == written, MAKER["__doc__"]
