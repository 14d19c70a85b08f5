"""Plays a scenario on the site: the trouble, the wait for full service, the promises."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from chaos.ledger import Watch
from chaos.scenario import LOADED_BOUND_S, Scenario
from chaos.site import ChaosSite, Progress
from chaos.table import Row
from chaos.tenant import hostile_tenant
from tidegauge.cluster.api import client

READY_WITHIN_S = 120.0
LONGER_S = 90.0
"""How much longer than its bound is waited for full service: to say how long it took, and to play the next scenario."""


def play(site: ChaosSite, scenario: Scenario, say: Progress) -> Row:
    """One row. The site is whole afterwards unless the row's ``seconds`` is ``None``."""
    row = Row(scenario.name, scenario.bound_s)
    try:
        site.wait_until_whole(within_s=READY_WITHIN_S)
        site.wait_for_incident()
        with hostile_tenant(site):
            _play(site, scenario, row, say)
    except (AssertionError, OSError, client.ApiError) as error:
        row.failure = str(error)
    finally:
        if scenario.cleanup is not None:
            scenario.cleanup(site)
    return row


def _play(site: ChaosSite, scenario: Scenario, row: Row, say: Progress) -> None:
    watch = Watch(site)
    watch.begin()
    try:
        scenario.run(site, watch)
        since_s = time.monotonic()
        say(f"{scenario.name}: {scenario.what}; waiting for full service")
        row.seconds = site.wait_full_service(scenario.bound_s + LONGER_S, since_s=since_s, lacked=row.lacked)
        if scenario.after is not None:
            scenario.after(site, watch)
    except Exception:
        with suppress(AssertionError):  # that nothing can be compared is not why it failed
            row.broken = watch.finish()
        raise
    row.broken = watch.finish()
    row.longest_gap_s, row.stalest_s, row.unseen_s = watch.longest_gap_s, watch.stalest_s, watch.unseen_s
    row.load = watch.load
    if row.load > (os.cpu_count() or 1):
        row.bound_s = max(row.bound_s, LOADED_BOUND_S)
