"""What people can do by a key in ``tidegauge top``: each act says what will happen to whom before it happens.

An act takes the way of its command (``tidegauge policy grade``, ``policy pause``, ``snapshot``, ``profile --now``) with
the rights of whoever presses the key, and is recorded as that is.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tidegauge.cli.errors import CommandError
from tidegauge.cli.top.model import JobMeant
from tidegauge.cli.top.service import Service
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.acts import NOT_SILENCED, ActKind
from tidegauge.core.incidents.grades import RULE, Grade
from tidegauge.core.jobs.exemption import ExemptingCommand, exempting_command
from tidegauge.core.text import one_line

EXEMPTING_S = 30.0
"""Timeout of the command that exempts a job, seconds."""


class Choice(NamedTuple):
    """One answer to a question, and what it does."""

    key: str
    label: str
    do: Callable[[str], str]
    """The function that does it for a reason, and returns a sentence for the user. Raises ``CommandError``."""


@dataclass(frozen=True)
class Question:
    """What is asked before something is done. Without choices it only says what to do elsewhere."""

    title: str
    sentences: tuple[str, ...]
    choices: tuple[Choice, ...] = ()
    asks_reason: bool = False
    """A reason can be typed; Enter then takes the only choice."""


def grade_question(service: Service, number: int, about: str) -> Question:
    """Who looks at an incident, and whether it was a leak; ``about`` says which it is."""
    sentences = (
        about,
        f"acknowledge: everybody sees that you are looking at it. {NOT_SILENCED}",
        f"leak: {RULE[Grade.LEAK]}; not a leak: {RULE[Grade.NOT_A_LEAK]}.",
        "Your answer is recorded with your name; whether it was a leak counts towards the precision of notifications. "
        "No job changes.",
    )
    return Question(
        f"Acknowledge incident {number}, or say whether it was a leak?",
        sentences,
        (
            Choice("a", "acknowledge", lambda _: service.act(number, ActKind.ACKNOWLEDGE)),
            Choice("u", "take that back", lambda _: service.act(number, ActKind.UNACKNOWLEDGE)),
            Choice("y", "it was a leak", lambda _: service.grade(number, Grade.LEAK)),
            Choice("n", "it was not", lambda _: service.grade(number, Grade.NOT_A_LEAK)),
        ),
    )


def pause_question(service: Service, cluster: str, paused: str | None) -> Question:
    """To stop all actions, or to allow them again if they are ``paused`` (by whom and since when)."""
    if paused is not None:
        return Question(
            f"Resume actions on {cluster}?",
            (
                f"Actions are paused {paused}.",
                "From then on Tidegauge acts again on jobs of all users as the policy says, and the circuit breakers "
                "are reset.",
            ),
            (Choice("y", "resume actions", lambda _: " ".join(service.resume(None))),),
        )
    return Question(
        f"Pause all actions on {cluster}?",
        (
            "Tidegauge then acts on no job of anybody until somebody resumes. Incidents are still recorded and owners "
            "notified; actions already handed to a scheduler cannot be undone. Everybody sees your name and reason.",
        ),
        (Choice("enter", "pause all actions", lambda reason: " ".join(service.pause(reason or None))),),
        asks_reason=True,
    )


def rank_question(service: Service, job: JobKey, whose: str, rank: int) -> Question:
    """What to ask a rank for; ``whose`` names its job and owner."""
    return Question(
        f"Ask rank {rank} of {whose}?",
        (
            "evidence: records about 30 steps with the stacks of allocations, compares them, and looks for what holds "
            "the growing tensors; training is slower meanwhile (on the head, as the service's user or root).",
            "snapshot: writes what is allocated now; training pauses for a moment (on the head, too).",
            "memory profile: the same as `tidegauge profile --now`, by the API with your rights.",
        ),
        (
            Choice("e", "evidence", lambda _: service.ask_evidence(job, rank)),
            Choice("s", "snapshot", lambda _: service.ask_snapshot(job, rank)),
            Choice("p", "memory profile", lambda _: service.ask_profile(job, rank)),
        ),
    )


def exempt_question(
    job: JobMeant,
    *,
    run: Callable[[ExemptingCommand], str] | None = None,
    which: Callable[[str], str | None] = shutil.which,
) -> Question:
    """To keep Tidegauge from acting on a job, by its scheduler, which checks the rights; ``run`` runs the command."""
    title = f"Exempt {job.words} from actions?"
    if job.is_exempt:
        return Question(title, ("It is exempt already: Tidegauge never acts on it. Its owner still gets messages.",))
    then = "Tidegauge then never caps, checkpoints, requeues, holds or cancels it; its owner still gets messages."
    command = exempting_command(job.key.job_id, job.scheduler)
    if command is None:
        how = (
            "A running job of this kind is exempted by the site's policy: an admin adds a pattern under "
            "`brakes.exempt` (docs/policy.md). Of a job with an open incident: `tidegauge incidents exempt INCIDENT`. "
            "The owner starts the next one with `tidegauge run --no-actions`."
        )
        return Question(title, (then, how))
    words = " ".join(command.words)
    if not command.is_complete or which(command.words[0]) is None:
        return Question(title, (then, f"Run this where {command.words[0]} works, as the owner or an admin: {words}"))
    sentences = (then, f"This runs `{words}` as you. It replaces the job's comment, and Slurm checks your rights.")
    return Question(title, sentences, (Choice("y", "exempt the job", lambda _: (run or _run)(command)),))


def _run(command: ExemptingCommand) -> str:
    try:
        done = subprocess.run(
            command.words, capture_output=True, text=True, check=False, timeout=EXEMPTING_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"NOTHING HAS CHANGED: {error}") from error
    if done.returncode:
        raise CommandError(f"NOTHING HAS CHANGED: {one_line(done.stderr or done.stdout, 300)}")
    return f"done: {' '.join(command.words)}; the service sees it within a minute"
