"""What docs/slack.md tells people to do is what the code needs."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from fakes.fake_slack import ALL_SCOPES, SCOPE_OF
from tidegauge_exporter.messages import action_text as deeds
from tidegauge_exporter.messages import headlines

PAGE = (Path(__file__).parents[3] / "docs" / "slack.md").read_text(encoding="utf-8")


def test_the_manifest_asks_for_the_scopes_that_are_needed_and_no_others() -> None:
    block = re.search(r"```yaml\n(   display_information:.*?)```", PAGE, re.DOTALL)
    assert block is not None
    scopes = yaml.safe_load(block[1])["oauth_config"]["scopes"]["bot"]
    assert set(scopes) == ALL_SCOPES
    assert {*SCOPE_OF.values(), "users:read"} == set(scopes), "users:read.email wants users:read"


def test_every_sign_is_explained() -> None:
    signs = [*headlines.OPEN_SIGNS.values(), headlines.RECOVERING_SIGN, headlines.RECOVERED_SIGN, headlines.ENDED_SIGN]
    signs += [value for name, value in vars(deeds).items() if name.endswith("_SIGN")]
    table = PAGE.partition("| sign | meaning |")[2].partition("\n\n")[0]
    assert [sign for sign in signs if sign not in table] == []
