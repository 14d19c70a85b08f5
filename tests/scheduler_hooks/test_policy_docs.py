"""The policy's reference is what the code says, and the page's own example and claims are true."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import yaml

from tidegauge_scheduler_hooks.policy.files import DEFAULT_FILE, load_policy
from tidegauge_scheduler_hooks.policy.models import Rule

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "policy.md"


def test_the_reference_is_up_to_date() -> None:
    generate = runpy.run_path(str(ROOT / "scripts" / "generate_docs.py"))
    page = PAGE.read_text(encoding="utf-8")
    assert generate["policy_page"](page) == page, "run: make docs"
    assert (ROOT / "docs" / "policy.schema.json").read_text(encoding="utf-8") == generate["policy_schema"](), (
        "make docs"
    )


def test_the_example_is_the_default_policys_rule() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (rule,) = yaml.safe_load(example)
    assert Rule.model_validate(rule) in load_policy(None).rules


def test_the_default_policy_writes_out_the_defaults_of_the_brakes() -> None:
    policy = load_policy(None)
    assert policy.brakes == type(policy.brakes)(), "a site that leaves a brake out gets what the default file shows"
    written = yaml.safe_load(DEFAULT_FILE.read_text(encoding="utf-8"))["brakes"]
    assert written.keys() == type(policy.brakes).model_fields.keys()


def test_the_schema_knows_every_rung() -> None:
    schema = json.loads((ROOT / "docs" / "policy.schema.json").read_text(encoding="utf-8"))
    actions = {rung["properties"]["action"]["const"] for name, rung in schema["$defs"].items() if name.endswith("Rung")}
    assert actions == {"notify", "annotate", "snapshot", "cap", "checkpoint", "requeue", "hold", "cancel"}
