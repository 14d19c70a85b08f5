"""The head's list of forgotten persons, for nodes that are away and for what they report late. It names nobody."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tidegauge.core.evidence.pieces import Piece
from tidegauge.core.persons.forgotten import Forgotten, is_forgotten
from tidegauge.core.views import NodeSummary
from tidegauge.files import owner_for_root, replace_file

log = logging.getLogger(__name__)

KEEP_S = 90 * 86_400.0
"""A node that was away for longer has deleted its snapshots for their age."""


class Reported(NamedTuple):
    """A report without what is forgotten."""

    summary: NodeSummary
    evidence: tuple[str, ...] = ()
    """Ids of pieces that the agent may forget."""
    profiles: tuple[str, ...] = ()


def read_forgotten(path: Path) -> tuple[Forgotten, ...]:
    """The list; empty without a file. A damaged one is logged, and costs what nodes report late."""
    try:
        raw = json.loads(path.read_bytes())
        return tuple(Forgotten(one[0], tuple(one[1]), tuple(one[2])) for one in raw["forgotten"])
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, IndexError) as error:
        log.error("%s cannot be read (%s): run `tidegauge forget` again for whom it was for", path, error)
        return ()


def add_forgotten(path: Path, one: Forgotten) -> None:
    """Raises ``OSError``."""
    kept = [old for old in read_forgotten(path) if one.before_unix_s - old.before_unix_s <= KEEP_S]
    raw = {"version": 1, "forgotten": [list(each) for each in (*kept, one)]}
    replace_file(path, json.dumps(raw, indent=1).encode(), durable=True, owner=owner_for_root(path.parent))


def without_forgotten(summary: NodeSummary, forgotten: Sequence[Forgotten]) -> Reported:
    """Ended ranks and pieces of before are left out; what still runs is reported anew."""
    if not forgotten:
        return Reported(summary)
    ranks = tuple(
        rank
        for rank in summary.ranks
        if rank.alive or not is_forgotten(forgotten, rank.uid, rank.identity.job_id, rank.last_sample_unix_s)
    )
    evidence = tuple(one.evidence_id for one in summary.evidence if _is_gone(one, one.at_unix_s, forgotten))
    profiles = tuple(one.profile_id for one in summary.profiles if _is_gone(one, one.at_unix_s, forgotten))
    return Reported(
        replace(
            summary,
            ranks=ranks,
            evidence=tuple(one for one in summary.evidence if one.evidence_id not in evidence),
            profiles=tuple(one for one in summary.profiles if one.profile_id not in profiles),
        ),
        evidence,
        profiles,
    )


def _is_gone(piece: Piece, at_unix_s: float, forgotten: Sequence[Forgotten]) -> bool:
    return is_forgotten(forgotten, piece.job.uid, piece.job.job_id, at_unix_s)
