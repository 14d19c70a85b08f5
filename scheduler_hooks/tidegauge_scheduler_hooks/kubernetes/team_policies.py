"""``MemoryPolicy``: a team's word on what may be done to the workloads of its namespace, inside the admin's policy.

It only takes away, but for ``mayRequeue``, which an owner can say on each workload as well. Several in a namespace are
one: what each of them allows, when each of them does, and may be requeued if one says so and all allow it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.units import format_duration
from tidegauge.core.verdicts import Severity
from tidegauge_scheduler_hooks.kubernetes.owners import at
from tidegauge_scheduler_hooks.kubernetes.ports import Object, Resource, Watches

MEMORY_POLICIES = Resource("tidegauge.dev", "v1alpha1", "memorypolicies", "MemoryPolicy")
ALWAYS = frozenset({ActionKind.NOTIFY, ActionKind.SNAPSHOT})
"""Nobody is kept from hearing of a problem, or from its evidence."""
NARROWED = tuple(action for action in ActionKind if action not in ALWAYS)
SEVERITIES = (Severity.WARNING, Severity.CRITICAL)
MAX_AGE_S = 7 * 86400
MAX_QUOTED_CHARS = 40
MAX_NAMES = 3


class TeamWord(NamedTuple):
    """What a namespace's policies say together. By default they say nothing."""

    allowed: frozenset[ActionKind] = frozenset(ActionKind)
    may_requeue: bool = False
    said_by: tuple[str, ...] = ()
    """Their names."""
    min_severity: Severity | None = None
    """Less severe growth is not acted on; the admin's bound stands beside it, as beside ``min_age_s``."""
    min_age_s: int | None = None
    """An incident must have been open for so long."""

    def why_not(self, action: ActionKind) -> str | None:
        """Why the action is not allowed, for people."""
        if action in self.allowed:
            return None
        return f"MemoryPolicy {_named(self.said_by)} of its namespace does not allow it"


SAYS_NOTHING = TeamWord()


class ReadPolicy(NamedTuple):
    """One policy. What is refused of it gives nothing."""

    word: TeamWord
    refused: tuple[str, ...]
    """For people."""


def read_policy(obj: Object) -> ReadPolicy:
    """Of an object that may have been written under another definition of the kind. An action that is not known is
    not allowed by naming it, and a part that is not understood, which may narrow, allows nothing: what is unclear is
    not done."""
    spec, refused = obj.get("spec"), list[str]()
    if not isinstance(spec, Mapping):
        spec = {}
        refused.append("spec is not an object")
    known_parts = {"allowedActions", "mayRequeue", "minSeverity", "minAgeSeconds"}
    refused += [f"{str(name)[:MAX_QUOTED_CHARS]} is not known" for name in spec.keys() - known_parts]
    not_understood = bool(refused)
    allowed = frozenset(ActionKind)
    if "allowedActions" in spec:
        listed = spec["allowedActions"]
        if not isinstance(listed, list):
            listed = []
            refused.append("allowedActions is not a list")
        known = {action.value: action for action in NARROWED}
        words = [str(one) for one in listed]
        refused += [f"{word[:MAX_QUOTED_CHARS]!r} is not an action" for word in words if word not in known]
        allowed = ALWAYS | {known[word] for word in words if word in known}
    min_severity = next((one for one in SEVERITIES if one.value == spec.get("minSeverity")), None)
    if "minSeverity" in spec and min_severity is None:
        not_understood = True
        refused.append(f"minSeverity is none of {', '.join(one.value for one in SEVERITIES)}")
    min_age_s = spec.get("minAgeSeconds")
    if min_age_s is not None and not (type(min_age_s) is int and 0 < min_age_s <= MAX_AGE_S):
        not_understood, min_age_s = True, None
        refused.append(f"minAgeSeconds is no whole number from 1 to {MAX_AGE_S}")
    may_requeue = spec.get("mayRequeue", False) is True and not not_understood
    if not_understood:
        allowed = ALWAYS
    if may_requeue and ActionKind.REQUEUE not in allowed:
        may_requeue = False
        refused.append("mayRequeue allows what allowedActions leaves out")
    named = (str(at(obj, ("metadata", "name"))),)
    return ReadPolicy(TeamWord(allowed, may_requeue, named, min_severity, min_age_s), tuple(sorted(refused)))


def merged_words(words: Iterable[TeamWord]) -> TeamWord:
    """In any order the same."""
    said = list(words)
    allowed = frozenset(ActionKind).intersection(*(word.allowed for word in said))
    may_requeue = any(word.may_requeue for word in said) and ActionKind.REQUEUE in allowed
    severities = [word.min_severity for word in said if word.min_severity is not None]
    return TeamWord(
        allowed,
        may_requeue,
        tuple(sorted(name for word in said for name in word.said_by)),
        max(severities, key=lambda one: one.level, default=None),
        max((word.min_age_s for word in said if word.min_age_s is not None), default=None),
    )


def in_force(words: Sequence[TeamWord]) -> str:
    """What all policies of a namespace allow together, and which of several narrow it, for people."""
    word = merged_words(words)
    allowed = [action.value for action in NARROWED if action in word.allowed]
    done = "all that the admin's policy decides" if len(allowed) == len(NARROWED) else ", ".join(allowed) or "nothing"
    if word.min_severity is not None:
        done += f"; growth at {word.min_severity.value} or above"
    if word.min_age_s is not None:
        done += f"; after {format_duration(word.min_age_s)}"
    if word.may_requeue:
        done += "; workloads may be requeued"
    if len(words) > 1:
        narrowing = merged_words(one for one in words if one._replace(said_by=(), may_requeue=False) != SAYS_NOTHING)
        done += f", by {_named(word.said_by)} together"
        done += f"; narrowed by {_named(narrowing.said_by)}" if narrowing.said_by else ""
    return f"Done in this namespace, beside messages: {done}"


def acceptance(read: ReadPolicy, of_namespace: str) -> tuple[bool, str]:
    """Whether all of the policy is in force, and what is by all of its namespace (``in_force``), for people."""
    refused = f". Refused: {'; '.join(read.refused)}" if read.refused else ""
    return not read.refused, f"{of_namespace}{refused}"


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"{', '.join(names[:MAX_NAMES])}{more}"


def policies_by_namespace(policies: Iterable[Object]) -> Mapping[str, Sequence[Object]]:
    """Those of each namespace that has one."""
    found: dict[str, list[Object]] = {}
    for policy in policies:
        found.setdefault(str(policy["metadata"].get("namespace")), []).append(policy)
    return found


class TeamPolicies:
    """The policies of all namespaces, by a watch. Thread-safe."""

    def __init__(self, watches: Watches) -> None:
        self._store = watches.store(MEMORY_POLICIES)

    @property
    def problem(self) -> str | None:
        """Why they are not known, for people; without the definition of the kind there are none."""
        if self._store.synced or self._store.kind_missing:
            return None
        return self._store.problem or "MemoryPolicies have not been listed yet"

    def by_namespace(self) -> Mapping[str, TeamWord]:
        """What each namespace with a policy says."""
        found = policies_by_namespace(self._store.all())
        return {namespace: merged_words(read_policy(one).word for one in said) for namespace, said in found.items()}
