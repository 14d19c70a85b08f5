"""Reported pieces, evidence or memory profiles, on their way from agents into the database.

Reports never wait for the database: a piece waits here until it is written, and its agent repeats it until a reply
confirms that it is kept. So a coordinator that dies loses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from tidegauge.core.evidence.pieces import Piece
from tidegauge.core.ids import JobKey

MAX_WAITING = 64
"""Pieces; further ones are not answered, and come again with the next report."""
MAX_PIECES_PER_REPORT = 16
"""Of one report are looked at: agents send them in order, and what is kept is not sent again."""
MAX_REMEMBERED = 10_000
"""Pieces of which it is remembered that they are kept: an agent that missed the answer asks within seconds."""

PieceName = tuple[JobKey, str]
"""A piece by its job, whole, and id: ids are the job's own words."""


P = TypeVar("P", bound=Piece)


class PieceQueue(Generic[P]):
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[PieceName, P] = {}
        self._kept: dict[PieceName, None] = {}
        """In the order in which they were kept."""

    def take(self, reported: Sequence[P]) -> tuple[str, ...]:
        """The ids of reported pieces that are kept; all others are queued. Never blocks."""
        pieces = reported[:MAX_PIECES_PER_REPORT]
        with self._lock:
            for piece in pieces:
                name = _name(piece)
                if name not in self._kept and len(self._waiting) < MAX_WAITING:
                    self._waiting.setdefault(name, piece)
            missing = {piece.piece_id for piece in pieces if _name(piece) not in self._kept}
        # Two ranks may claim the same id: only when both are kept may the agent forget what it calls so.
        return tuple(dict.fromkeys(piece.piece_id for piece in pieces if piece.piece_id not in missing))

    def waiting(self) -> Mapping[PieceName, P]:
        """What is to be written, oldest first."""
        with self._lock:
            return dict(self._waiting)

    def keep(self, names: Collection[PieceName]) -> None:
        """These are written, or nobody wants them."""
        with self._lock:
            for name in names:
                self._waiting.pop(name, None)
                self._kept[name] = None
            for name in list(self._kept)[: max(len(self._kept) - MAX_REMEMBERED, 0)]:
                del self._kept[name]


def _name(piece: Piece) -> PieceName:
    return piece.job.whole, piece.piece_id
