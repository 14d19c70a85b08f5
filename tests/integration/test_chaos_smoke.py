"""The chaos suite itself, in short: a real cluster of three nodes, two of its scenarios, every promise looked at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos.__main__ import all_scenarios
from chaos.network import NoNamespacesError
from chaos.play import play
from chaos.site import ChaosSite, NoRigError, chaos_site
from integration.needs import missing
from matrix import in_turns

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1800)]

PLAYED = ("agent", "coordinator", "opener")


@pytest.fixture(scope="module")
def site() -> Iterator[ChaosSite]:
    try:
        with chaos_site() as site:
            yield site
    except (NoNamespacesError, NoRigError) as error:
        missing(str(error))


@pytest.mark.parametrize("name", in_turns(PLAYED, 2))
def test_chaos_scenario_loses_nothing_and_disturbs_no_job(
    site: ChaosSite, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = all_scenarios()[name]
    # The machine itself may stand still for seconds here: only what stays away is a broken promise.
    monkeypatch.setattr("chaos.promises.MAX_GAP_S", 30.0)
    monkeypatch.setattr("chaos.ledger.STALE_WITHIN_S", 30.0)
    monkeypatch.setattr("chaos.ledger.MAX_UNSEEN_S", 30.0)
    monkeypatch.setattr("chaos.play.LONGER_S", 300.0)
    row = play(site, scenario, lambda _: None)
    assert row.seconds is not None, row.failure
    # How long it took is for `make chaos` to judge, on a machine that does nothing else.
    assert row.failure is None
    assert {promise: lines for promise, lines in row.broken.items() if lines} == {}
