"""Having a rank on another host do something: through the service on its head, whose HTTP API is read only."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Optional, TypeVar

from tidegauge.cli.errors import CommandError
from tidegauge.cli.service_api import local_service
from tidegauge.core.ids import JobKey
from tidegauge.core.text import one_line

if TYPE_CHECKING:
    from tidegauge.cluster.actions.evidence_asks import EvidenceAsks

T = TypeVar("T")

ANSWER_WITHIN_S = 75.0
"""The coordinator looks every 2 s; the rank then has a minute for a snapshot."""
LOOK_EVERY_S = 0.5


def asks_here(args: argparse.Namespace) -> EvidenceAsks:
    """The way to the coordinator on this node. Raises ``CommandError`` where there is none from here."""
    from tidegauge.cluster.actions.evidence_asks import EvidenceAsks

    files, record = local_service(args)
    if args.api or record is None or not record.spec.is_head:
        raise CommandError("to reach ranks on other hosts, run this on the service's head, as its user or root")
    return EvidenceAsks(files.asks)


def wish(asks: EvidenceAsks, job: JobKey, rank: int, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the rank answered. Raises ``CommandError``, also where it refuses."""
    try:
        made = asks.put(job, rank, request)
    except OSError as error:
        raise CommandError(
            f"cannot reach the service ({error}): run this as the user who runs it, or as root"
        ) from error
    try:
        answer = until(lambda: asks.fetch(made), within_s=ANSWER_WITHIN_S)
        asks.withdraw(made)
    except OSError as error:
        raise CommandError(f"cannot read the service's answer: {error}") from error
    if answer is None:
        raise CommandError(f"no answer from the service within {ANSWER_WITHIN_S:.0f} s; check `tidegauge status`")
    if answer.reply is None:
        raise CommandError(f"rank {rank}: {one_line(answer.error or 'no answer')}")
    return answer.reply


def until(look: Callable[[], Optional[T]], *, within_s: float, every_s: float = LOOK_EVERY_S) -> Optional[T]:
    """What ``look`` returns once it is something; ``None`` after ``within_s``."""
    deadline_s = time.monotonic() + within_s
    while (found := look()) is None and time.monotonic() < deadline_s:
        time.sleep(every_s)
    return found
