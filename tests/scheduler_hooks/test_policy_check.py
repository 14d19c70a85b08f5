"""What is said of a policy file that is wrong: all of it, with lines and valid choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge_scheduler_hooks.policy.check import MAX_MESSAGE_CHARS, Findings, check_policy
from tidegauge_scheduler_hooks.policy.files import DEFAULT_FILE, PolicyFileError, load_policy

STOP = """\
version: 1
rules:
  - name: leak
    when: {cause: leak, severity: critical, checkpoint: true, requeueable: true}
    ladder:
      - {action: notify}
      - {action: notify, after: 5m}
      - {action: checkpoint, after: 5m, before_oom: 30m}
      - {action: requeue}
"""


def said(findings: Findings) -> list[str]:
    return [str(one) for one in findings.found]


def test_a_sound_policy_has_nothing_said_of_it() -> None:
    assert said(check_policy(STOP)) == []


def test_the_default_policy_is_sound_and_observes() -> None:
    findings = check_policy(DEFAULT_FILE.read_text(encoding="utf-8"))
    assert said(findings) == []
    assert findings.policy is not None
    assert findings.policy.mode == "observe"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "error: a policy consists of lines `key: value`"),
        ("version: 1\nmode: {", "line 2: error: not valid YAML"),
        ("mode: act", "line 1: error: version is missing; add `version: 1`"),
        ("version: 2", "line 1: error: version: 2 is not valid"),
        ("version: 1\nmode: off", "line 2: error: mode: 'off' is not valid: input should be 'observe', 'warn' or"),
        (
            "version: 1\nmod: act",
            "line 2: error: unknown key 'mod'; the keys here are version, mode, brakes, rules",
        ),
        (
            "version: 1\nbrakes:\n  breaker: {shar: 1}",
            "line 3: error: unknown key 'shar'; the keys here are share,",
        ),
        ("version: 1\nmode: warn\nmode: act", "line 3: error: duplicate key mode, first on line 2"),
        ("version: 1\nbrakes:\n  min_age: 1:30", "line 3: error: brakes.min_age: '1:30' is not a duration"),
        ("version: 1\nbrakes:\n  exempt: {users: [1]}", "line 3: error: brakes.exempt.users.0: 1 is not valid"),
        ("a: &a [*a]", "error: not a policy: something in it contains itself"),
        ("a: " + "[" * 5_000, "error: not a policy: something in it contains itself or is nested too deeply"),
        ("version: 1\x0f", "error: not valid YAML: unacceptable character"),
        ("version: 2026-13-45", "error: not valid YAML"),
        ("version: !!bool x", "error: not valid YAML"),
        ("version: !!timestamp x", "error: not valid YAML"),
        ("version: !!int ''", "error: not valid YAML"),
        (f"version: {'9' * 5_000}", "error: not valid YAML"),
        ("# " + "x" * (1 << 18), "error: it has 262,146 characters; the limit is 262,144"),
    ],
)
def test_policy_check_error_names_line_and_choices(text: str, expected: str) -> None:
    findings = check_policy(text)
    assert findings.policy is None
    assert any(expected in one for one in said(findings)), said(findings)


@pytest.mark.parametrize(
    ("rung", "expected"),
    [
        (
            "{action: kill}",
            "rule a, rung 2: 'kill' is not an action; the actions are notify, annotate, snapshot, cap, checkpoint,",
        ),
        ("{after: 5m}", "rule a, rung 2: None is not an action"),
        (
            "{action: notify, grace: 5m}",
            "unknown key 'grace'; the keys here are after, before_oom, tries, retry_after,",
        ),
        ("{action: notify, after: soon}", "rule a, rung 2, after: 'soon' is not a duration"),
    ],
)
def test_a_wrong_rung_is_said_on_its_line(rung: str, expected: str) -> None:
    findings = check_policy(f"version: 1\nrules:\n- name: a\n  ladder:\n  - action: notify\n  - {rung}\n")
    assert [one.line for one in findings.errors] == [6]
    assert expected in findings.errors[0].message


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "      - {action: notify, after: 5m}\n",
            "",
            "line 8: error: rule leak, rung 3: never done: it requires 2 notify",
        ),
        ("{action: notify, after: 5m}", "{action: notify, after: 4m}", "at least 5m apart"),
        ("      - {action: checkpoint, after: 5m, before_oom: 30m}\n", "", "never done: add a checkpoint before it"),
        ("{action: requeue}", "{action: requeue, after: 11m}", "its checkpoint would be 11m old"),
        (
            "{action: requeue}",
            "{action: hold}\n      - {action: notify}",
            "line 10: error: rule leak, rung 5: never reac",
        ),
        ("before_oom: 30m", "before_oom: 5m", "line 8: warning: rule leak, rung 3: before_oom is less than grace"),
        (", checkpoint: true", "", "rung 3: a job that cannot checkpoint gets stuck here"),
        (", requeueable: true", "", "rung 4: a job that must not be requeued gets stuck here"),
        (", severity: critical", "", "growth below critical gets stuck here"),
        ("cause: leak", "cause: out_of_memory", "line 8: error: rule leak, rung 3: never due: before_oom needs"),
        ("{action: requeue}", "{action: requeue, without_checkpoint: true}", "work is lost"),
        (
            "rules:",
            "brakes: {warnings_before_stop: 0}\nrules:",
            "line 2: warning: jobs may be stopped without a warning",
        ),
        ("rules:", "brakes: {min_severity: warning}\nrules:", "their growth is no longer critical"),
        (
            "rules:",
            "brakes: {actions_per_hour: 1}\nrules:",
            "rung 4: never done: with its checkpoint it counts as two actions",
        ),
        ("rules:", "brakes: {requeues_per_job: 0}\nrules:", "so when_used_up applies at once"),
    ],
)
def test_policy_check_finds_contradictions(old: str, new: str, expected: str) -> None:
    assert old in STOP
    findings = said(check_policy(STOP.replace(old, new)))
    assert any(expected in one for one in findings), findings


def test_the_setting_makes_no_sense_against_private_pools() -> None:
    graphs = STOP.replace("cause: leak", "cause: cuda_graphs")
    assert not check_policy(graphs).errors
    setting = graphs.replace("{action: requeue}", "{action: requeue, alloc_conf: {expandable_segments: True}}")
    (error,) = check_policy(setting).errors
    assert "never done: expandable_segments does not fix private pools of CUDA graphs" in error.message


def test_a_rule_behind_a_wider_one_is_found() -> None:
    rules = "- {name: all, ladder: [{action: notify}]}\n- {name: leak, when: {cause: leak}, ladder: [{action: notify}]}"
    findings = check_policy(f"version: 1\nrules:\n{rules}\n")
    assert said(findings) == [
        "line 4: error: rule leak is never reached: rule all before it matches everything that it matches"
    ]


def test_a_policy_without_rules_is_told_that_it_does_nothing() -> None:
    findings = check_policy("version: 1")
    assert said(findings) == ["line 1: warning: no rules: Tidegauge never does anything"]
    assert findings.policy is not None


def test_a_file_that_cannot_be_used_is_named_with_line_and_choices(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nmode: dry-run\nfoo: 1\n")
    with pytest.raises(PolicyFileError) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: line 2: error: mode: 'dry-run' is not valid")
    assert "'observe', 'warn' or 'act' (and 1 more: `tidegauge policy check` lists them)" in str(caught.value)
    assert caught.value.findings is not None


def test_a_file_that_cannot_be_read_is_a_policy_file_error_too(tmp_path: Path) -> None:
    with pytest.raises(PolicyFileError, match="cannot be read: No such file"):
        load_policy(tmp_path / "absent.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"version: 1 # \xe9\n")
    with pytest.raises(PolicyFileError, match="not UTF-8, at byte 13"):
        load_policy(tmp_path / "latin.yaml")


def test_warnings_do_not_keep_a_policy_from_being_used(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\nmode: act\n")
    assert load_policy(path).mode == "act"


def test_aliases_of_aliases_are_counted_as_what_they_stand_for() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 13))]
    (finding,) = check_policy("\n".join(lines)).found
    assert (finding.line, "expands to more than 50,000 values" in finding.message) == (6, True)


def test_an_alias_that_is_used_twice_is_a_policy_like_any_other() -> None:
    text = "version: 1\nbrakes:\n  exempt: {users: &few [ada, bob], job_ids: *few}\n"
    assert "aliases" not in " ".join(said(check_policy(text)))


def test_a_message_quotes_no_key_of_thousands_of_letters() -> None:
    (finding,) = check_policy(f"{'k' * 9_000}: 1\n{'k' * 9_000}: 2").found
    assert len(finding.message) <= MAX_MESSAGE_CHARS


def test_an_error_in_a_rule_names_the_rule_and_the_key() -> None:
    text = "version: 1\nrules:\n- name: a\n  when: {cause: x}\n  ladder: [{action: notify}]\n"
    assert check_policy(text).errors[0].message.startswith("rule a, when.cause: 'x' is not valid")
