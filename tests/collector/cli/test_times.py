"""Times as commands take them."""

from __future__ import annotations

import pytest

from tidegauge.cli.main import main

COMMANDS = (
    ["policy", "grade"], ["policy", "log"], ["policy", "simulate", "policy.yaml"], ["incidents"],
    ["grafana", "annotations"],
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize(
    ("span", "said"), [("0d", "'0d' is an empty time span"), ("00w", "'00w' is an"), ("5", "'5' is not a time span")]
)
def test_a_time_span_that_holds_nothing_is_refused_with_examples(
    command: list[str], span: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--since", span])
    assert ended.value.code == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert said in printed
    assert "examples: 90s, 30m, 36h, 7d, 2w" in printed
