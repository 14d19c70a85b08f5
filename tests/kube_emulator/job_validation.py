"""What a Job must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kube_emulator.causes import labels_causes, missing, unsupported, wrong
from kube_emulator.defaults import GENERATED_LABELS, NAME_LABELS
from kube_emulator.pod_validation import pod_spec_causes
from kube_emulator.selectors import matches_labels

_TEMPLATE_LABELS = "spec.template.metadata.labels"


def job_causes(job: Mapping[str, Any]) -> Iterator[str]:
    spec, template = job["spec"], job["spec"]["template"]
    labels = (template.get("metadata") or {}).get("labels") or {}
    yield from labels_causes(_TEMPLATE_LABELS, labels)
    yield from _selector_causes(job, labels)
    for field in ("parallelism", "completions", "backoffLimit"):
        if (spec.get(field) or 0) < 0:
            yield wrong(f"spec.{field}", spec[field], "must be greater than or equal to 0")
    if spec["completionMode"] not in ("NonIndexed", "Indexed"):
        yield unsupported("spec.completionMode", spec["completionMode"], "Indexed", "NonIndexed")
    elif spec["completionMode"] == "Indexed" and spec.get("completions") is None:
        yield missing("spec.completions", "when completion mode is Indexed")
    restart = template["spec"].get("restartPolicy")
    if restart == "Always":
        yield unsupported("spec.template.spec.restartPolicy", restart, "OnFailure", "Never")
    if spec.get("podFailurePolicy"):
        if restart != "Never":
            words = 'only "Never" is supported when podFailurePolicy is specified'
            yield wrong("spec.template.spec.restartPolicy", restart, words)
        for place, rule in enumerate(spec["podFailurePolicy"].get("rules") or []):
            yield from _rule_causes(rule, f"spec.podFailurePolicy.rules[{place}]")
    yield from pod_spec_causes(template["spec"], "spec.template.spec")


def _selector_causes(job: Mapping[str, Any], labels: Mapping[str, str]) -> Iterator[str]:
    """A Job's selector and the labels that belong to it are the server's to make: a copy may not bring them along."""
    spec, metadata = job["spec"], job["metadata"]
    if not spec.get("manualSelector"):
        for keys, wanted in ((GENERATED_LABELS, metadata["uid"]), (NAME_LABELS, metadata["name"])):
            if any(labels.get(key) != wanted for key in keys):
                yield wrong(_TEMPLATE_LABELS, labels, f"must be '{wanted}'")
        if (spec["selector"].get("matchLabels") or {}).get(GENERATED_LABELS[0]) != metadata["uid"]:
            yield wrong("spec.selector", spec["selector"], "`selector` not auto-generated")
    if not matches_labels(spec.get("selector"), labels):
        yield wrong("spec.selector", spec.get("selector"), "`selector` does not match template `labels`")


def _rule_causes(rule: Mapping[str, Any], at: str) -> Iterator[str]:
    if rule.get("action") not in ("FailJob", "FailIndex", "Ignore", "Count"):
        yield unsupported(f"{at}.action", rule.get("action"), "Count", "FailIndex", "FailJob", "Ignore")
    if bool(rule.get("onExitCodes")) == bool(rule.get("onPodConditions")):
        yield wrong(at, "", "specifying one of OnExitCodes and OnPodConditions is required")
    codes = rule.get("onExitCodes") or {}
    if codes.get("operator") == "In" and 0 in (codes.get("values") or []):
        yield wrong(f"{at}.onExitCodes.values", 0, "must not be 0 for the In operator")
