"""Answers commands on a rank's socket. Runs in the helper thread; every reply is a small JSON object.

A reply may take a while: ``empty_cache`` and ``snapshot`` wait for a step, ``holders`` looks at every object, and
``checkpoint`` lists the folders that the owner declared, and hangs with their file server. Training waits for none
of this.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Optional, Protocol

from tidegauge.core.text import one_line
from tidegauge.probe.checkpoint.callbacks import Checkpoints
from tidegauge.probe.evidence.commands import EvidenceCommands
from tidegauge.probe.evidence.recorder import EvidenceRecorder
from tidegauge.probe.faults import Faults, describe
from tidegauge.probe.levels import WATCHING_LEVELS
from tidegauge.probe.pacing import StoppedError
from tidegauge.probe.requests import RequestRefusedError, is_a_look, parse_ask, request_id_of
from tidegauge.probe.step_counting.boundary_calls import STEP_WAIT_S, BoundaryCalls
from tidegauge.probe.step_counting.steps import StepCounter

PREFIX = "tidegauge: "
MAX_LINES, MAX_LINE_CHARS = 20, 500
MAX_REMEMBERED = 256
_STDERR = 2


class OwnerMessages:
    """Prints the service's messages to the job's owner, each once, where the scheduler cannot deliver them.

    To the file descriptor, not to ``sys.stderr``: that belongs to the training thread, and may have been replaced by a
    logger. A pipe that nobody reads blocks the helper thread, never training.
    """

    def __init__(self, descriptor: int = _STDERR) -> None:
        self._descriptor = descriptor
        self._told: dict[str, None] = {}

    def tell(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """``{"id": …, "text": …}``. Raises ``RequestRefusedError``, and ``OSError`` if nothing can be printed."""
        request_id, text = request_id_of(request), request.get("text")
        if not isinstance(text, str) or not text.strip():
            raise RequestRefusedError("usage", "text must be a text")
        if request_id in self._told:
            return {"ok": True, "already": True}
        lines = [PREFIX + one_line(line, MAX_LINE_CHARS) for line in text.splitlines()[:MAX_LINES]]
        # A progress bar leaves the cursor somewhere in its line.
        begin = "\n" if os.isatty(self._descriptor) else ""
        rest = (begin + "\n".join(lines) + "\n").encode(errors="replace")
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        while len(self._told) >= MAX_REMEMBERED:
            self._told.pop(next(iter(self._told)))
        self._told[request_id] = None
        return {"ok": True}


class Asked(Protocol):
    """The process that answers: ``session.probe.Probe``."""

    steps: StepCounter
    faults: Faults
    evidence: EvidenceRecorder
    checkpoints: Checkpoints

    def describe(self) -> dict[str, Any]: ...

    def switch_on(self, level: str) -> bool: ...

    def detach(self) -> None: ...

    def set_fraction(self, fraction: float) -> None: ...

    def empty_cache(self) -> Optional[float]: ...

    def at_next_step(self, call: Callable[[], None]) -> None: ...

    def capturing(self) -> bool: ...


class Commands:
    """The table of commands, over one probe."""

    def __init__(self, probe: Asked, *, step_wait_s: float = STEP_WAIT_S) -> None:
        self._probe = probe
        self._boundary = BoundaryCalls(probe.at_next_step, probe.capturing, wait_s=step_wait_s)
        self._table: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "ping": self._ping,
            "attach": self._attach,
            "detach": self._detach,
            "fraction": self._fraction,
            "empty_cache": self._empty_cache,
            "tell": OwnerMessages().tell,
            "checkpoint": self._checkpoint,
            "checkpoint_status": lambda request: probe.checkpoints.look(request_id_of(request)),
            "checkpoint_withdraw": lambda request: probe.checkpoints.withdraw(request_id_of(request)),
            **EvidenceCommands(probe.evidence, self._boundary).table,
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out ``{"command": NAME, …}``: ``{"ok": true, …}``, or ``{"error": …}`` with the expected values."""
        name = request.get("command")
        if not isinstance(name, str) or name not in self._table:
            return {"error": f"no such command: {str(name)[:40]}", "known": list(self._table)}
        try:
            return self._table[name](request)
        except RequestRefusedError as refused:
            return {"error": str(refused), "kind": refused.kind, "step": self._probe.steps.steps}
        except StoppedError:
            return {"error": "this process is no longer watched", "kind": "unable"}
        except Exception as error:
            self._probe.faults.caught(f"the command {name}", error)
            return {"error": describe(error)}

    def _ping(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {"ok": True, **self._probe.describe()}

    def _attach(self, request: Mapping[str, Any]) -> dict[str, Any]:
        level = request.get("level", "stats")
        if level not in WATCHING_LEVELS:
            return {"error": f"level must be one of {', '.join(WATCHING_LEVELS)}"}
        if not self._probe.switch_on(level):
            return {"error": "nothing can be recorded; see the job's stderr"}
        note = self._probe.evidence.note
        return {"ok": True, **self._probe.describe(), **({"note": note} if note is not None else {})}

    def _detach(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        self._probe.detach()
        return {"ok": True, **self._probe.describe()}

    def _fraction(self, request: Mapping[str, Any]) -> dict[str, Any]:
        value = request.get("value")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            return {"error": "value must be a number above 0 and at most 1"}
        self._probe.set_fraction(float(value))
        return {"ok": True, "limit_fraction": float(value)}

    def _checkpoint(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if is_a_look(request):
            return self._probe.checkpoints.look(request_id_of(request))
        return self._probe.checkpoints.ask(parse_ask(request))

    def _empty_cache(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """At the next step boundary: freeing memory while a graph is captured would break the capture."""
        duration_s = self._boundary.call(self._probe.empty_cache, now=request.get("now") is True)
        if duration_s is None:
            return {"error": "no device is in use: nothing to free"}
        return {"ok": True, "duration_s": duration_s}
