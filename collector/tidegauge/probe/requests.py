"""Checkpoint requests to a rank, and the value that the job's own function gets. Values only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Optional

from tidegauge.core.ring_layout import CHECKPOINT_WAYS

CALLBACK, SIGNAL, NONE = CHECKPOINT_WAYS
_ASKABLE = (CALLBACK, SIGNAL)

_LAST_UNIX_S = 1e12
_MAX_ID_CHARS = 200
_MAX_REASON_CHARS = 300


class CheckpointRequest(NamedTuple):
    """The argument of a function that was given to ``tidegauge.on_checkpoint_request``."""

    request_id: str
    """The same on all ranks that are asked."""
    step: int
    """Training steps that this process has finished, as Tidegauge counts them; the same on all ranks."""
    deadline_unix_s: float
    """The deadline for the checkpoint, in unix seconds."""
    reason: Optional[str] = None
    """The reason for the checkpoint, for the log."""


Save = Callable[[CheckpointRequest], object]


class RequestRefusedError(Exception):
    """The request is refused. ``kind`` is a stable word for programs: ``usage``, ``unable`` (no callback, no
    handler, no readable path), ``passed`` (the step is over already), ``late``, ``busy``, ``unknown``, ``begun``."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class SaveRequest(NamedTuple):
    """A request to save the state at the boundary after ``at_step`` finished steps; ``None``: at the next one."""

    request_id: str
    way: str
    at_step: Optional[int]
    deadline_unix_s: float
    ranks: int = 1
    """Ranks asked for this step. Several agree at the boundary that all of them have come."""
    reason: Optional[str] = None
    within_s: Optional[float] = None
    """Seconds from now until the deadline; replaces ``deadline_unix_s``, for two machines' clocks may differ."""


def request_id_of(request: Mapping[str, Any]) -> str:
    """The ``id`` of a command. Raises ``RequestRefusedError``."""
    request_id = request.get("id")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= _MAX_ID_CHARS:
        raise RequestRefusedError("usage", f"id must be a text of 1 to {_MAX_ID_CHARS} characters")
    return request_id


def is_a_look(request: Mapping[str, Any]) -> bool:
    """Whether ``{"command": "checkpoint", "id": …}`` has no more fields, and so only asks for the progress."""
    return request.keys() <= {"command", "id"}


def parse_ask(request: Mapping[str, Any]) -> SaveRequest:
    """The request in a command. Raises ``RequestRefusedError``."""
    way, at_step, ranks = request.get("way"), request.get("at_step"), request.get("ranks", 1)
    deadline, within_s = request.get("deadline_unix_s"), request.get("within_s")
    if way not in _ASKABLE:
        raise RequestRefusedError("usage", f"way must be one of {', '.join(_ASKABLE)}")
    if at_step is not None and (isinstance(at_step, bool) or not isinstance(at_step, int) or at_step < 0):
        raise RequestRefusedError(
            "usage", "at_step must be a whole number of finished steps, or null for the next boundary"
        )
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1 or (ranks > 1 and at_step is None):
        raise RequestRefusedError("usage", "ranks must be the number of ranks asked; more than one need an at_step")
    if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 <= deadline <= _LAST_UNIX_S:
        raise RequestRefusedError("usage", "deadline_unix_s must be a time in unix seconds")
    if within_s is not None and (
        isinstance(within_s, bool) or not isinstance(within_s, (int, float)) or not 0 <= within_s <= _LAST_UNIX_S
    ):
        raise RequestRefusedError("usage", "within_s must be a number of seconds, or left out")
    reason = request.get("reason")
    return SaveRequest(
        request_id=request_id_of(request),
        way=way,
        at_step=at_step,
        deadline_unix_s=float(deadline),
        ranks=ranks,
        reason=reason[:_MAX_REASON_CHARS] if isinstance(reason, str) else None,
        within_s=None if within_s is None else float(within_s),
    )


def saver(fn: Callable[..., object]) -> Save:
    """``fn`` as a function of one request.

    It gets the request if its first positional parameter has no default or is named ``request``, or if it has
    ``*args``; else nothing, so that ``def save(path="last.pt")`` keeps its path. Raises ``TypeError`` for what cannot
    be called so.
    """
    import inspect  # here, for a process that registers nothing

    if not callable(fn):
        raise TypeError(f"expected a function that saves the job's state, not {type(fn).__name__}")
    try:
        signature = inspect.signature(fn)
    except ValueError:
        return fn  # a builtin that does not tell
    named = [
        one for one in signature.parameters.values() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    takes_more = any(one.kind is one.VAR_POSITIONAL for one in signature.parameters.values())
    takes_it = takes_more or any(one.default is one.empty or one.name == "request" for one in named[:1])
    try:
        signature.bind(*([None] if takes_it else []))
    except TypeError:
        raise TypeError(
            f"{fn!r} takes {signature}: it must be callable with one CheckpointRequest, or with nothing"
        ) from None
    return fn if takes_it else lambda _request: fn()
