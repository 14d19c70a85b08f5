"""What ended a job, in one story."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sample_views import NOW_S
from scheduler_values import decision, died_of_oom, facts, finding, incident, record
from slack_stories import FOUND, crashed
from tidegauge.core.incidents import Incident, OomForecast
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, Disposition, Outcome
from tidegauge.core.incidents.post_mortem import next_step, post_mortem
from tidegauge.core.verdicts import Band


def told(incident: Incident, *records: DecisionRecord) -> dict[str, str]:
    return dict(post_mortem(incident, records))


def decided(action: ActionKind, outcome: Outcome | None = None, **changes: Any) -> DecisionRecord:
    return record(decision(action, decision_id=action.value, **changes), outcome)


def test_a_death_is_told_in_one_story() -> None:
    notified = decided(ActionKind.NOTIFY, Outcome.DONE)
    would = decided(ActionKind.CHECKPOINT, disposition=Disposition.WOULD, mode="observe", facts=facts(checkpoint=None))
    story = told(died_of_oom(evidence=(FOUND,)), notified, would)
    assert list(story) == ["Cause", "Error", "Forecast", "Evidence", "What was missing", "What was done"]
    assert "train.py:41" in story["Cause"]
    assert story["Error"] == "Rank 1, step 3816: live tensors grew. Trying again would get as far again."
    assert story["Forecast"] == "Made at 07:59:32 UTC, 28 s before the error: 17\u201328 s; it was right."
    assert story["Evidence"] == "The line that allocates, what holds it."
    assert story["What was done"] == "Notify: done."
    assert story["What was missing"] == (
        "A way to have the job save its state (`tidegauge.on_checkpoint_request`, or a checkpoint signal); an action "
        "in time: checkpoint was due, but the policy's mode was observe."
    )


def test_a_death_of_which_nothing_was_known_before_says_what_was_missing() -> None:
    died = died_of_oom(foreseen=None, explanation=None, findings=(finding(1, limit_bytes=None),))
    story = told(died)
    assert story["Error"] == "Wanted 20.0 MiB, 10.0 MiB free."
    assert (story["Forecast"], story["Evidence"], story["What was done"]) == ("None was made.", "None.", "Nothing.")
    assert story["What was missing"] == (
        "A forecast: the memory limit of the rank was not known; evidence of the line that allocates and of what holds "
        "it; a message to the owner: the policy asked for none until then; an action in time: the policy asked for "
        "none until then."
    )


@pytest.mark.parametrize(
    ("said", "judged"),
    [
        (Band(60.0, 70.0, 80.0), "the error came 32 s earlier."),
        (Band(10.0, 15.0, 18.0), "the error came 10 s later."),
        (Band(20.0, 28.0, math.inf), "it was right."),
    ],
)
def test_a_forecast_is_judged_by_what_came(said: Band, judged: str) -> None:
    assert told(died_of_oom(foreseen=OomForecast(NOW_S - 28.0, said)))["Forecast"].endswith(judged)


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (
            decided(ActionKind.CHECKPOINT, Outcome.SUPERSEDED),
            "checkpoint was skipped because the job had ended",
        ),
        (decided(ActionKind.CHECKPOINT), "checkpoint was not over"),
        (decided(ActionKind.REQUEUE, disposition=Disposition.WITHHELD, brake="paused"), "requeue was on hold (paused)"),
    ],
)
def test_an_action_that_did_not_come_to_pass_says_why(last: DecisionRecord, why: str) -> None:
    assert f"an action in time: {why}" in told(died_of_oom(), last)["What was missing"]


def test_nothing_was_missing_where_state_was_saved_and_the_line_known() -> None:
    saved = decided(ActionKind.CHECKPOINT, Outcome.DONE)
    notified = decided(ActionKind.NOTIFY, Outcome.DONE)
    assert told(died_of_oom(evidence=(FOUND,)), notified, saved)["What was missing"] == "Nothing that is known."


def test_the_error_itself_points_to_its_growth() -> None:
    died = crashed().incident
    assert told(died)["Forecast"] == "None: these ranks had no incident of growth."
    assert told(died)["Cause"].startswith("The card was full of live tensors")
    assert next_step(died) == told(died)["Cause"]


def test_the_next_step_is_what_evidence_advises() -> None:
    assert "append `tensor.item()`" in (next_step(died_of_oom(evidence=(FOUND,))) or "")
    assert "TIDEGAUGE_PROFILE=trace" in (next_step(died_of_oom()) or "")


def test_an_incident_that_did_not_end_by_an_error_has_no_post_mortem() -> None:
    assert (told(incident()), next_step(incident())) == ({}, None)


@pytest.mark.parametrize("at_unix_s", [math.nan, math.inf, 1e300, -1e300])
def test_a_time_that_a_job_made_up_spoils_nothing(at_unix_s: float) -> None:
    end = died_of_oom().ran_out
    assert end is not None
    odd = died_of_oom(ran_out=end._replace(oom=end.oom._replace(at_unix_s=at_unix_s)))
    assert told(odd)["Forecast"].startswith("Made at 07:59:32 UTC")
