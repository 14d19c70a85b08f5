"""What a scenario is: trouble on the site, and how long it may take until everything is as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.ledger import Watch
from chaos.site import ChaosSite

BOUND_S = 30.0
HEAD_BOUND_S = LOADED_BOUND_S = 60.0
"""The second where more processes are runnable than there are cores."""
AWAY_S = 600.0


@dataclass(frozen=True)
class Scenario:
    """One way to break things.

    ``run`` makes the trouble on a site that is whole, has its jobs training and an incident open about ``leaky``. It
    returns at the moment from which the service has to come back by itself: after the kill, after the link is healed,
    the process goes on, the disk has room again. What the ledger must know (ranks that were ended on purpose) it says
    to the ``Watch``.
    """

    name: str
    what: str
    """One line for the table."""
    run: Callable[[ChaosSite, Watch], None]
    bound_s: float = BOUND_S
    after: Callable[[ChaosSite, Watch], None] | None = None
    """Once the service is whole again: wait for what must still come of it (an action to its end), before the
    promises are looked at. May fail with ``AssertionError``."""
    cleanup: Callable[[ChaosSite], None] | None = None
    """Whatever happened: the site as it was."""
    is_long: bool = False
    """Played only if it is asked for."""
