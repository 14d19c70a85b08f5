"""Memory profiles of this node's ranks: asks for them when ``core.profile_policy`` says so, and holds what came of it.

Asking takes a rank a moment, or a timeout where it is stopped: the evidence thread does it, as it makes the profiles.
"""

from __future__ import annotations

import logging
import queue
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from tidegauge.agent.evidence.profile_budget import ProfileBudget
from tidegauge.agent.evidence.profiled_ranks import ProfiledRank, ProfiledRanks
from tidegauge.agent.evidence.waiting import WaitingProfiles
from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS
from tidegauge.core.ids import ProcessId
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.request import COMMAND, profile_request
from tidegauge.core.profile_policy import ProfilePolicy, peak_of
from tidegauge.core.text import one_line
from tidegauge.core.views import RankView, with_fields

_log = logging.getLogger(__name__)

ANSWER_WITHIN_S = 2.0
"""A rank says at once that it begins."""
EVIDENCE_AND_TRIP_S = 90.0
"""Behind its window a rank searches for holders, and writes."""
MAX_EVIDENCE_S = 600.0
UNABLE = "unable"
"""The kind of a rank's answer that cannot record, now or later."""
NO_SUCH_COMMAND = "no such command"
"""How a probe from before profiles answers."""
PROFILES_FOLDER = "profiles"

AskSocket = Callable[..., dict[str, Any]]
"""``command_socket.ask``."""


class RankAsk(NamedTuple):
    """A rank to ask, for the evidence thread."""

    process: ProcessId
    to: ProcessSocket
    request: Mapping[str, Any]


class _Outcome(NamedTuple):
    process: ProcessId
    problem: str | None
    """Why there is no profile; ``None``: there is one."""
    for_good: bool = False


class NodeProfiles:
    """The polling thread calls ``look``, the evidence thread ``ask`` and ``learn``; any thread may call the others."""

    def __init__(
        self,
        waiting: WaitingProfiles,
        profiled: ProfiledRanks,
        *,
        policy: ProfilePolicy | None = None,
        budget: ProfileBudget | None = None,
        ask_socket: AskSocket = ask,
        new_id: Callable[[], str] = lambda: f"profile-{secrets.token_hex(8)}",
    ) -> None:
        self.waiting = waiting
        self.budget = budget or ProfileBudget()
        self._profiled = profiled
        self._policy = policy or ProfilePolicy()
        self._ask_socket = ask_socket
        self._new_id = new_id
        self._problems: dict[ProcessId, str] = {}
        """Of the ranks whose last recording came to nothing."""
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()

    def state_dict(self, process: ProcessId) -> Any:
        """What the policy remembers of a rank, as JSON can say it."""
        return self._policy.state_dict(process)

    def load_state_dict(self, process: ProcessId, state: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` for what is no state."""
        self._policy.load_state_dict(process, state)

    def look(
        self,
        views: Sequence[RankView],
        sockets: Mapping[ProcessId, ProcessSocket],
        watched: Set[ProcessId],
        now_s: float,
    ) -> tuple[tuple[RankView, ...], Collection[RankAsk]]:
        """One round: the ranks with the composition of their last profile, or why there is none, and those to ask
        now."""
        self._hear(now_s)
        wanted = self._policy.wanted(views, self._profiled.peaks(), now_s)
        self._problems = {process: why for process, why in self._problems.items() if process in watched}
        asks, put_off = [], {}
        for view, reason in wanted:
            to, why_not = sockets.get(view.process), self.budget.why_not(view.tenant, now_s)
            if why_not is not None:
                put_off[view.process] = f"put off: {why_not}"
            elif to is not None:
                self._policy.asked(view.process, now_s)
                self._problems.pop(view.process, None)
                asks.append(RankAsk(view.process, to, profile_request(self._new_id(), reason)))
        problems = {**self._problems, **put_off}
        shown = self._profiled.applied(views, watched)
        if problems:
            shown = tuple(
                with_fields(view, profile_problem=problems[view.process]) if view.process in problems else view
                for view in shown
            )
        return shown, asks

    def hear_of_order(self, order: Order, view: RankView | None, now_s: float) -> str | None:
        """The coordinator asks a rank of this node for something: for evidence, which comes first, or for a profile.
        Returns why the rank is not to be asked; ``view`` is the rank, if it is known."""
        command = order.request.get("command")
        if order.to is not OrderTo.RANK or command not in ("evidence", COMMAND):
            return None
        if command == COMMAND and view is not None:
            why_not = self.budget.why_not(view.tenant, now_s)
            if why_not is not None:
                return why_not
        self._orders.put(order)
        return None

    def ask(self, wanted: RankAsk) -> None:
        """Ask a rank; takes up to ``ANSWER_WITHIN_S``."""
        pid, why, for_good = wanted.process.pid, None, False
        try:
            answer = self._ask_socket(wanted.to, wanted.request, timeout_s=ANSWER_WITHIN_S)
        except NotAskedError as error:
            why = str(error)
        else:
            if "error" in answer:
                why = str(answer["error"])
                for_good = answer.get("kind") == UNABLE or NO_SUCH_COMMAND in why
        if why is None:
            _log.info("pid %d records its memory for a profile (%s)", pid, wanted.request["reason"])
        else:
            _log.info("pid %d records no memory profile now: %s", pid, why)
            what = "given up" if for_good else "refused"
            self._outcomes.put(_Outcome(wanted.process, _said(what, why), for_good=for_good))

    def learn(self, profile: RankProfile, view: RankView) -> None:
        """Report a profile; ``view`` is the rank at that time."""
        if profile.has_profile:
            self._profiled.learn(ProfiledRank(profile.process, peak_of(view), profile.by_category))
        problem = None if profile.has_profile else _said("failed", "; ".join(profile.problems))
        self._outcomes.put(_Outcome(profile.process, problem))
        self.waiting.add(profile)

    def lost(self, process: ProcessId, why: str) -> None:
        """A recording of this rank is not read."""
        self._outcomes.put(_Outcome(process, _said("failed", why)))

    def _hear(self, now_s: float) -> None:
        while not self._outcomes.empty():
            outcome = self._outcomes.get()
            if outcome.problem is None:
                self._problems.pop(outcome.process, None)
                self._policy.done(outcome.process, now_s)
            else:
                self._problems[outcome.process] = outcome.problem
                self._policy.refused(outcome.process, now_s, for_good=outcome.for_good)
        while not self._orders.empty():
            order = self._orders.get()
            if order.request.get("command") == COMMAND:
                self._policy.asked(order.process, now_s)
            else:
                most_s = order.request.get("most_s")
                window_s = min(most_s, MAX_EVIDENCE_S) if isinstance(most_s, (int, float)) else MAX_EVIDENCE_S
                self._policy.gives_evidence(order.process, now_s + window_s + EVIDENCE_AND_TRIP_S)


def _said(what: str, why: str) -> str:
    return one_line(f"{what}: {why}", MAX_TEXT_CHARS)


def open_node_profiles(state_dir: Path) -> NodeProfiles:
    folder = state_dir / PROFILES_FOLDER
    return NodeProfiles(WaitingProfiles(folder), ProfiledRanks(folder))
