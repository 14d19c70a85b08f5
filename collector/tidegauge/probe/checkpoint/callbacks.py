"""Asks the job to save its state: at one step boundary, in the training thread, at most once per request.

The helper thread handles commands (``ask``, ``look``, ``withdraw``), the training thread the ends of steps
(``at_boundary``). They share no lock: a request is handed over through ``waiting``, a list from which only one thread
can remove it, and from then on only one thread at a time writes its progress. So a helper thread that hangs on a
dead file server never delays training.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

from tidegauge.core.jobs.checkpoint_signal import ALLOWED, SIGNAL_VARIABLE, parse_signal
from tidegauge.probe.checkpoint.files import (
    PATH_VARIABLE,
    SETTLED_S,
    FreshFiles,
    Listing,
    UnreadableError,
    declared_paths,
    list_files,
)
from tidegauge.probe.checkpoint.signal import signal_name, why_not_sent
from tidegauge.probe.faults import Faults, describe
from tidegauge.probe.requests import CALLBACK, NONE, SIGNAL, CheckpointRequest, RequestRefusedError, Save, SaveRequest
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.runtime.checkpoint_agreement import all_have_come

# Means of a job to save a checkpoint on request: its callback, or the signal and the paths that its owner declared, or
# the declaration that it has nothing to save.

NOTHING_VARIABLE = "TIDEGAUGE_CHECKPOINT"
"""``none``: these ranks have nothing to save (an evaluator, an inference server)."""


class Means(NamedTuple):
    """The ways to ask this job for a checkpoint now: it may register a callback, or set variables, while it runs."""

    save: Optional[Save]
    signal_text: str
    signal: Optional[int]
    """``None``: no signal is declared, or one that is not allowed."""
    paths: tuple[str, ...]
    """Where checkpoints are written to, absolute."""
    nothing_text: str = ""
    """Value of ``TIDEGAUGE_CHECKPOINT``."""

    @property
    def way(self) -> Optional[str]:
        """The way to ask this process that gives proof, or ``None``."""
        if self.save is not None:
            return CALLBACK
        if self.signal is not None and self.paths:
            return SIGNAL
        return NONE if self.nothing_text.lower() == NONE else None

    def complaint(self) -> Optional[str]:
        """An error in the variables, for people."""
        if self.signal_text and self.signal is None:
            return f"{SIGNAL_VARIABLE}={self.signal_text[:40]!r} is not {ALLOWED}: no signal is sent for a checkpoint"
        if self.nothing_text and self.nothing_text.lower() != NONE:
            return f"{NOTHING_VARIABLE}={self.nothing_text[:40]!r} is not {NONE!r}: it is ignored"
        if self.signal is not None and not self.paths:
            return (
                f"{SIGNAL_VARIABLE} is set without {PATH_VARIABLE}: a checkpoint could not be verified, so none is "
                "requested"
            )
        return None

    def why_unable(self, way: str) -> Optional[str]:
        """The reason why the job cannot be asked that way now, or ``None``."""
        if way == CALLBACK:
            return None if self.save is not None else "no callback is registered (tidegauge.on_checkpoint_request)"
        if not self.signal_text:
            return f"{SIGNAL_VARIABLE} is not set: the owner must say which signal requests a checkpoint"
        if self.signal is None or not self.paths:
            return self.complaint()
        return why_not_sent(self.signal)


def means_of(environ: Mapping[str, str], save: Optional[Save]) -> Means:
    """The means that the environment and a registered callback give."""
    text = environ.get(SIGNAL_VARIABLE, "").strip()
    nothing = environ.get(NOTHING_VARIABLE, "").strip()
    return Means(save, text, parse_signal(text), declared_paths(environ.get(PATH_VARIABLE, "")), nothing)


WAITING = "waiting"
ASKED = "asked"
DONE = "done"
FAILED = "failed"

MAX_REMEMBERED = 16
"""Requests whose outcome is kept: repeating one returns its progress."""
_MAX_DETAIL_CHARS = 240


class Progress(NamedTuple):
    """A request's progress; replaced as a whole, so that the other thread never sees half of it."""

    stage: str
    detail: str
    step: Optional[int] = None
    """Finished steps when the job was asked; ``None``: it was not."""
    running: bool = False
    """The callback is running."""


class _Request:
    def __init__(
        self, ask: SaveRequest, until_s: float, paths: tuple[str, ...], files: Optional[FreshFiles], remark: str
    ) -> None:
        self.ask = ask
        self.until_s = until_s
        """The deadline on the monotonic clock: a wall clock may be set meanwhile."""
        self.progress = Progress(WAITING, "")
        self.withdrawn = False
        self.paths = paths
        self.files = files
        """``None``: no path is declared, or files need not be checked any more."""
        self.names: tuple[str, ...] = ()
        self.remark = remark
        """A remark about the declared paths, for people."""


class Checkpoints:
    """One process's checkpoint requests."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        backend: Backend,
        steps: Callable[[], int],
        faults: Faults,
        save: Optional[Save] = None,
        list_files: Callable[[Sequence[str]], Listing] = list_files,
        wall_s: Callable[[], float] = time.time,
        mono_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waiting: list[_Request] = []
        """The request whose step has not come yet; the only thing that a step boundary looks at without one."""
        self.save = save
        """The job's own function, if it registered one."""
        self._environ = environ
        self._steps = steps
        self._backend = backend
        self._faults = faults
        self._list_files = list_files
        self._wall_s = wall_s
        self._mono_s = mono_s
        self._requests: dict[str, _Request] = {}

    def means(self) -> Means:
        return means_of(self._environ, self.save)

    # ----------------------------------------------------------------- in the helper thread

    def ask(self, ask: SaveRequest) -> dict[str, Any]:
        """Accept a request, or report its progress if it was accepted before. Raises ``RequestRefusedError``."""
        known = self._requests.get(ask.request_id)
        if known is not None and not (known.withdrawn and known.ask.at_step != ask.at_step):
            return self._looked_at(known)
        until_s = self._mono_s() + (ask.deadline_unix_s - self._wall_s() if ask.within_s is None else ask.within_s)
        self._check(ask, until_s)
        request = self._with_baseline(ask, until_s)
        self._check_step(ask)  # listing files may have taken a while
        self._remember(request)
        self.waiting.append(request)
        # The training thread counts its step first and looks at ``waiting`` then; we do it the other way round. So
        # either it will see this request at its step, or we see here that the step was over.
        try:
            self._check_step(ask)
        except RequestRefusedError:
            if self._take(request):
                del self._requests[ask.request_id]
                raise
        return self._reply(request)

    def look(self, request_id: str) -> dict[str, Any]:
        """A request's progress. Raises ``RequestRefusedError`` for an unknown one."""
        request = self._requests.get(request_id)
        if request is None:
            raise RequestRefusedError("unknown", f"no request {request_id[:80]!r} was accepted in this process")
        return self._looked_at(request)

    def withdraw(self, request_id: str) -> dict[str, Any]:
        """Cancel a request whose step has not come. Raises ``RequestRefusedError`` if the job has been asked
        already."""
        request = self._requests.get(request_id)
        withdrawn = request is not None and self._take(request)
        if request is not None and withdrawn:
            request.withdrawn = True
            self._finish(request, FAILED, "withdrawn before its step")
        elif request is not None and request.progress.stage != FAILED:
            raise RequestRefusedError("begun", "too late to withdraw: its step has come, and the job is being asked")
        return {"ok": True, "withdrawn": withdrawn, "step": self._steps()}

    def _check(self, ask: SaveRequest, until_s: float) -> None:
        busy = next((one for one in self._requests.values() if one.progress.stage in (WAITING, ASKED)), None)
        if busy is not None and self._looked_at(busy)["stage"] in (WAITING, ASKED):
            raise RequestRefusedError(
                "busy", f"request {busy.ask.request_id[:80]!r} is under way ({busy.progress.stage})"
            )
        if self._mono_s() > until_s:
            raise RequestRefusedError("late", "its deadline has passed (or the clocks of the two machines disagree)")
        problem = self.means().why_unable(ask.way)
        if problem is not None:
            raise RequestRefusedError("unable", problem)
        self._check_step(ask)

    def _check_step(self, ask: SaveRequest) -> None:
        step = self._steps()
        if ask.at_step is not None and ask.at_step <= step:
            raise RequestRefusedError(
                "passed", f"step {ask.at_step} is already over: this rank has finished {step} steps"
            )

    def _with_baseline(self, ask: SaveRequest, until_s: float) -> _Request:
        paths = self.means().paths
        if not paths:
            return _Request(ask, until_s, paths, None, "")
        try:
            return _Request(ask, until_s, paths, FreshFiles(self._list_files(paths)), "")
        except UnreadableError as error:
            if ask.way == SIGNAL:
                raise RequestRefusedError("unable", f"the checkpoint could not be verified: {error}") from error
            return _Request(ask, until_s, paths, None, f"; {error}")

    def _remember(self, request: _Request) -> None:
        self._requests.pop(request.ask.request_id, None)
        self._requests[request.ask.request_id] = request
        while len(self._requests) > MAX_REMEMBERED:
            del self._requests[next(iter(self._requests))]

    def _looked_at(self, request: _Request) -> dict[str, Any]:
        late = self._is_late(request)
        if late and self._take(request):
            self._finish(request, FAILED, _too_late(request.ask))
        progress = request.progress
        if progress.stage in (ASKED, DONE) and not progress.running:  # the training thread has done its part
            if request.files is not None:
                self._look_for_files(request, request.files)
            if late and request.progress.stage == ASKED:
                detail = f"{progress.detail}{request.remark}; the deadline has passed"
                self._finish(request, FAILED, detail, progress.step)
        return self._reply(request)

    def _look_for_files(self, request: _Request, files: FreshFiles) -> None:
        try:
            proof = files.look(self._list_files(request.paths), now_s=self._mono_s())
        except UnreadableError as error:
            request.remark = f"; {error}"
            return
        request.names = proof.names
        request.remark = f"; {proof.detail}"
        if request.ask.way == CALLBACK:
            if request.progress.stage == DONE:
                request.files = None  # what is fresh now is what the callback wrote
        elif proof.proven:
            self._finish(request, DONE, proof.detail, request.progress.step)
        elif proof.moving is not None:
            request.remark += f"; {proof.moving} changed less than {SETTLED_S:g} s ago"

    def _reply(self, request: _Request) -> dict[str, Any]:
        stage, detail, step, _ = request.progress
        if stage == WAITING:
            at_step = request.ask.at_step
            detail = "waits for the next step" if at_step is None else f"waits for step {at_step}"
        return {
            "ok": True,
            "stage": stage,
            "step": self._steps() if step is None else step,
            "detail": (detail + request.remark)[:_MAX_DETAIL_CHARS],
            "fresh_files": list(request.names),
            "withdrawn": request.withdrawn,
        }

    def _finish(self, request: _Request, stage: str, detail: str, step: Optional[int] = None) -> None:
        request.progress = Progress(stage, detail, step)
        request.remark = ""
        request.files = None  # up to a few megabytes

    # ----------------------------------------------------------------- in the training thread

    def at_boundary(self) -> None:
        """A step ended, and ``waiting`` is not empty. Whatever the job's signal handler raises passes through, and from
        its callback all but ``Exception``: the caller must not be inside a ``try`` of ours."""
        try:
            now = self._due()
        except Exception as error:
            self._faults.caught("a checkpoint request", error)
            return
        if now is not None:
            now()

    def _due(self) -> Optional[Callable[[], None]]:
        """The call that asks the job now, if the waiting request is due and can still be met."""
        request, step = next(iter(self.waiting), None), self._steps()
        if request is None or (request.ask.at_step is not None and step < request.ask.at_step):
            return None
        if not self._take(request):
            return None
        try:
            return self._prepared(request, step)
        except Exception as error:
            request.progress = Progress(FAILED, f"the probe failed ({describe(error)}), and the job was not asked")
            self._faults.caught("a checkpoint request", error)
            return None
        except BaseException:
            request.progress = Progress(FAILED, f"step {step} was interrupted, and the job was not asked")
            raise

    def _prepared(self, request: _Request, step: int) -> Optional[Callable[[], None]]:
        ask, means = request.ask, self.means()
        problem = _too_late(ask) if self._is_late(request) else means.why_unable(ask.way)
        if problem is None and self._backend.capturing():
            problem = "a CUDA graph is being captured in this step, and saving would break it; retry later"
        problem = self._unless_all_have_come(ask, problem)
        if problem is not None:
            request.progress = Progress(FAILED, problem)
            return None
        if ask.way == CALLBACK:
            assert means.save is not None
            request.progress = Progress(
                ASKED, f"the callback is running since the end of step {step}", step, running=True
            )
            return partial(self._call, request, means.save, step)
        assert means.signal is not None
        request.progress = Progress(ASKED, f"{signal_name(means.signal)} was sent at the end of step {step}", step)
        # To the process, as `kill` does. Python runs the handler before the call is over if the main thread trains.
        return partial(os.kill, os.getpid(), means.signal)

    def _unless_all_have_come(self, ask: SaveRequest, problem: Optional[str]) -> Optional[str]:
        store = self._backend.store() if ask.ranks > 1 else None
        if store is None:
            return problem
        key = f"tidegauge/checkpoint/{ask.request_id}/{ask.at_step}"
        if all_have_come(store, key, ask.ranks, willing=problem is None, mono_s=self._mono_s):
            return None
        return problem or f"not all of {ask.ranks} ranks reached step {ask.at_step} to save; none of them was asked"

    def _call(self, request: _Request, save: Save, step: int) -> None:
        ask, began_s = request.ask, self._mono_s()
        try:
            left_s = request.until_s - began_s
            save(CheckpointRequest(ask.request_id, step, self._wall_s() + left_s, ask.reason))
        except Exception as error:
            request.progress = Progress(FAILED, f"the callback raised {describe(error)}", step)
            _say_traceback(step)
        except BaseException as error:
            left = f"the callback exited with {type(error).__name__} at step {step}, which proves nothing"
            request.progress = Progress(ASKED, left, step)
            raise
        else:
            took_s = self._mono_s() - began_s
            request.progress = Progress(DONE, f"the callback returned after {took_s:.1f} s at step {step}", step)

    # ----------------------------------------------------------------- in either

    def _take(self, request: _Request) -> bool:
        """Remove it from ``waiting``; false if it was not there, or if the other thread did so first."""
        try:
            self.waiting.remove(request)
        except ValueError:
            return False
        return True

    def _is_late(self, request: _Request) -> bool:
        return self._mono_s() > request.until_s


def _too_late(ask: SaveRequest) -> str:
    what = "no step ended" if ask.at_step is None else f"step {ask.at_step} did not end"
    return f"too late: {what} before the deadline, and the job was not asked"


def _say_traceback(step: int) -> None:
    """Print the callback's traceback for the job's owner on stderr, as of an uncaught exception."""
    try:
        text = f"tidegauge: the checkpoint callback failed at step {step}; training continues\n{traceback.format_exc()}"
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()
    except Exception:
        return
