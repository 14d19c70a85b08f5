"""Writes the references that come from the code: docs/metrics.md, docs/alerts.md, docs/runbooks.md, docs/settings.md,
docs/policy.schema.json, and the tables of docs/detector.md, docs/policy.md and docs/evidence.md.

python scripts/generate_docs.py
"""

from __future__ import annotations

import json
import runpy
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tidegauge.core.evidence.causes import RULES as CAUSE_RULES
from tidegauge.core.evidence.causes import CauseRule
from tidegauge.core.evidence.words import CAUSES
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.incidents.grades import EXAMPLES, RULE, RULE_NOTE, Grade
from tidegauge.core.verdicts import Signal
from tidegauge.settings import Settings
from tidegauge_exporter.metrics import docs_page as metrics_page
from tidegauge_exporter.rules import docs_page as alerts_page
from tidegauge_exporter.runbooks import docs_page as runbooks_page
from tidegauge_scheduler_hooks.policy import models, rungs
from tidegauge_scheduler_hooks.policy.allocator_settings import ALLOCATOR_SETTINGS
from tidegauge_scheduler_hooks.policy.brakes import BRAKES
from tidegauge_scheduler_hooks.policy.check import RUNGS
from tidegauge_scheduler_hooks.policy.conditions import When
from tidegauge_scheduler_hooks.policy.durations import write_duration

KEYS = ("key", "default", "meaning")

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

SETTINGS_INTRODUCTION = """# Settings

<!-- written by scripts/generate_docs.py from settings.py: change it there -->

Nothing needs to be set before Tidegauge is useful. Each setting comes from, in order of precedence:

1. a flag, `--set NAME=VALUE`,
2. the environment, `TIDEGAUGE_<NAME>`,
3. one YAML file: `--config FILE`, else `TIDEGAUGE_CONFIG`, else `~/.config/tidegauge/config.yaml`, else
   `/etc/tidegauge/config.yaml`,
4. the default.

Unknown names are errors. `tidegauge config show` prints the settings that differ from the default and who set them;
`--all` prints every setting.
"""


def settings_page() -> str:
    """docs/settings.md, from the fields' docstrings."""
    rows = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in Settings.model_fields.items():
        default = "see meaning" if field.default_factory else "-" if field.default is None else f"`{field.default}`"
        rows.append(f"| `{name}` | {default} | {' '.join((field.description or '').split())} |")
    return SETTINGS_INTRODUCTION + "\n" + "\n".join(rows) + "\n"


def policy_page(page: str) -> str:
    """``page``, the text of docs/policy.md, with its tables as the code has them."""
    tables = {
        "grades": [RULE_NOTE, "", *_table(("answer", "rule", "examples"), map(_grade_row, Grade))],
        "brakes": _table(
            ("brake", "what it holds", "when"),
            [(f"`{brake.name}`", _holds(brake.actions), brake.meaning) for brake in BRAKES],
        ),
        "policy keys": _table(KEYS, _keys(models.Policy)),
        "rule keys": _table(KEYS, _keys(models.Rule)),
        "when keys": _table(KEYS, _keys(When)),
        "rungs": _table(("action", "meaning"), [(f"`{name}`", _plain(kind.__doc__)) for name, kind in RUNGS.items()]),
        "rung keys": _table(KEYS, _keys(rungs.CapRung, leave_out=["action"])),
        "own rung keys": _table(
            ("action", *KEYS),
            [
                (f"`{name}`", *row)
                for name, kind in RUNGS.items()
                for row in _keys(kind, leave_out=rungs.CapRung.model_fields)
            ],
        ),
        "placeholders": _table(
            ("placeholder", "is filled in with"),
            [(f"`{{{name}}}`", meaning) for name, meaning in rungs.PLACEHOLDERS.items()],
        ),
        "allocator settings": _table(
            ("key", "takes", "since torch"),
            [
                (f"`{key}`", setting.takes, ".".join(map(str, setting.since)))
                for key, setting in ALLOCATOR_SETTINGS.items()
            ],
        ),
        "brake keys": _table(KEYS, _keys(models.Brakes)),
        "breaker keys": _table(KEYS, _keys(models.Breaker)),
        "exempt keys": _table(KEYS, _keys(models.Exempt)),
    }
    return _filled(page, tables)


def evidence_page(page: str) -> str:
    """``page``, the text of docs/evidence.md, with the table of causes as the code has it."""
    head = ("cause", "what it is", "of which growth", "what has to be seen", "what makes it surer")
    return _filled(page, {"causes": _table(head, map(_cause_row, CAUSE_RULES))})


def policy_schema() -> str:
    """docs/policy.schema.json."""
    return json.dumps(models.schema(), indent=2) + "\n"


def _filled(page: str, tables: Mapping[str, Sequence[str]]) -> str:
    """The page with each table between its two marks."""
    for name, lines in tables.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = "\n".join([before + begin, *lines, end + rest.split(end)[1]])
    return page


def _cause_row(rule: CauseRule) -> tuple[str, ...]:
    signals = [f"`{signal.value}`" for signal in Signal if signal in rule.signals]
    asked = "all" if len(signals) == len(Signal) else ", ".join([*signals, *(["not known"] * (None in rule.signals))])
    needs, also = (
        "; ".join(f"{sign.words} ({sign.source.value})" for sign in signs) or "-" for signs in (rule.needs, rule.also)
    )
    return f"`{rule.cause.value}`", CAUSES[rule.cause], asked, needs, also


def _grade_row(grade: Grade) -> tuple[str, str, str]:
    examples = "; ".join(text for answer, text in EXAMPLES if answer is grade)
    return f"`{grade.value}`", RULE[grade], examples


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def _keys(model: type[BaseModel], *, leave_out: Container[str] = ()) -> list[tuple[str, str, str]]:
    """Key, default and meaning of each field."""
    properties = model.model_json_schema()["properties"]
    return [
        (f"`{name}`", _default(field, properties[name]), _plain(field.description))
        for name, field in model.model_fields.items()
        if name not in leave_out
    ]


def _default(field: FieldInfo, about: dict[str, Any]) -> str:
    if field.is_required():
        return "needed"
    value = field.get_default(call_default_factory=True)
    if value is None or value == () or value == {} or isinstance(value, BaseModel):
        return "-"
    if "90s" in str(about):  # one of the examples that every duration has
        return f"`{write_duration(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else getattr(value, 'value', value)}`"


def _holds(actions: frozenset[ActionKind]) -> str:
    names = {
        frozenset(ActionKind): "all",
        frozenset(kind for kind in ActionKind if kind.is_acting): "all but words and evidence",
        frozenset(kind for kind in ActionKind if kind.is_stop): "what ends the job",
    }
    return names.get(actions) or ", ".join(f"`{kind.value}`" for kind in ActionKind if kind in actions)


def _plain(text: str | None) -> str:
    return " ".join((text or "").replace("``", "`").split()).replace("|", "\\|")


def main() -> None:
    (DOCS / "metrics.md").write_text(metrics_page.page(), encoding="utf-8")
    (DOCS / "alerts.md").write_text(alerts_page.page(), encoding="utf-8")
    (DOCS / "runbooks.md").write_text(runbooks_page.page(), encoding="utf-8")
    (DOCS / "settings.md").write_text(settings_page(), encoding="utf-8")
    policy = DOCS / "policy.md"
    policy.write_text(policy_page(policy.read_text(encoding="utf-8")), encoding="utf-8")
    evidence = DOCS / "evidence.md"
    evidence.write_text(evidence_page(evidence.read_text(encoding="utf-8")), encoding="utf-8")
    (DOCS / "policy.schema.json").write_text(policy_schema(), encoding="utf-8")
    runpy.run_path(str(ROOT / "bench" / "detector_parameters.py"), run_name="__main__")


if __name__ == "__main__":
    main()
