"""What messages tell, and what they leave out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fakes.block_kit import links, words
from sample_views import GIB, NOW_S
from scheduler_values import decision, died_of_oom, finding, oom_record, record
from slack_stories import (
    FOUND,
    closed,
    crashed,
    explained,
    fragmentation,
    leak,
    notify_decision,
    out_of_memory,
    outside,
    recovering,
)
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.incidents import ChangeKind, Closure, IncidentCause, IncidentChange, IncidentState, OomEnd
from tidegauge.core.incidents.actions import ActionKind, DecisionStatus, Disposition, Outcome
from tidegauge.core.verdicts import Band, Severity
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.slack.messages import (
    action_reply,
    change_reply,
    incident_message,
    owner_evidence,
    owner_followup,
    owner_message,
)

LINKS = Links("https://grafana.example/", "https://tidegauge.example/")


def read(message: Message) -> str:
    return "\n".join([message.text, *words(message.blocks)])


def incident(story: Story, *, now_unix_s: float = NOW_S) -> str:
    return read(incident_message(story, cluster="prod", links=LINKS, now_unix_s=now_unix_s))


def owner(story: Story, text: str | None = None) -> str:
    asked = notify_decision(story, text)
    return read(owner_message(asked, story, cluster="prod", links=LINKS, now_unix_s=NOW_S))


class TestIncident:
    def test_slack_incident_headline_names_owner_job_and_predicted_oom(self) -> None:
        message = incident_message(leak(), cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert message.blocks[0]["text"]["text"] == (
            "\N{LARGE RED CIRCLE} Memory leak in ada's job 4711: out of memory 08:14\u201308:22 UTC"
        )
        assert message.text == "\N{LARGE RED CIRCLE} Memory leak in ada's job 4711: out of memory in 14\u201322 min"

    def test_figures_are_there(self) -> None:
        told = incident(leak())
        for expected in (
            "Rank 3 of job 4711 leaks 35.8 MiB per step since step 300; at this rate it runs out of memory in 14\u2013",
            "*Owner*\n`ada`",
            "*Job*\n`4711`",
            "*Name*\n`llama-70b-sft`",
            "*Ranks*\nrank 3 of 16",
            "*Look first at*\nrank 3 on `gpu-a-017`, GPU 3",
            "*Growth*\n35.8 MiB per step, 18.4 GiB so far",
            "*Since*\nstep 300",
            "*Out of memory*\nin 14\u201322 min: not before <!date^1800000840^{time}|08:14 UTC>, your time",
            "*Severity*\ncritical",
            "Incident 12 \N{MIDDLE DOT} open \N{MIDDLE DOT} cluster prod \N{MIDDLE DOT} opened 07:45 UTC",
        ):
            assert expected in told

    def test_a_job_goes_by_its_given_name_where_its_id_was_made_up(self) -> None:
        story = leak()
        key = story.incident.key
        told = replace(story.incident, key=key._replace(job=key.job._replace(job_id="local-vm-1479-77")))
        said = incident(replace(story, incident=told))
        assert "Memory leak in ada's job llama-70b-sft: out of memory" in said
        assert "*Job*\n`llama-70b-sft`" in said
        assert "*Id*\n`local-vm-1479-77`" in said
        assert "*Name*" not in said

    def test_a_later_attempt_says_so(self) -> None:
        one = leak().incident
        again = replace(one, key=one.key._replace(job=one.key.job._replace(attempt=2)))
        assert "*Job*\n`4711`, attempt 2" in incident(Story(again))

    def test_time_that_has_passed_is_taken_off(self) -> None:
        told = incident(leak(), now_unix_s=NOW_S + 600.0)
        assert "out of memory in 4\u201312 min" in told
        assert "08:14\u201308:22 UTC" in told

    def test_an_end_that_is_overdue_is_any_moment_now(self) -> None:
        assert "out of memory any moment now" in incident(leak(), now_unix_s=NOW_S + 3_600.0)

    def test_an_end_without_a_latest_time_is_that_or_later(self) -> None:
        open_end = replace(leak().incident, seconds_to_oom=Band(840.0, 2_000.0, float("inf")))
        told = incident(Story(open_end))
        assert "out of memory 08:14 UTC or later" in told
        assert "in 14 min or more" in told

    def test_an_end_in_days_has_a_date(self) -> None:
        days = replace(leak().incident, seconds_to_oom=Band(2 * 86400.0, 3 * 86400.0, 4 * 86400.0))
        assert "out of memory 17 Jan 08:00 UTC \u2013 19 Jan 08:00 UTC" in incident(Story(days))

    def test_without_an_end_in_sight_none_is_claimed(self) -> None:
        told = incident(Story(replace(leak().incident, seconds_to_oom=None)))
        assert "out of memory" not in told.lower()

    def test_all_ranks_alike_are_not_listed(self) -> None:
        assert "*Ranks*\nall 8" in incident(outside())

    def test_an_out_of_memory_says_at_which_step_and_what_it_was(self) -> None:
        told = incident(out_of_memory())
        assert "Out of memory in ada's job 4711 at step 1,040" in told
        assert "The card was full of live tensors" in told

    @pytest.mark.parametrize(
        ("story", "sign"),
        [
            (leak(), "\N{LARGE RED CIRCLE}"),
            (fragmentation(), "\N{LARGE ORANGE CIRCLE}"),
            (recovering(), "\N{LARGE BLUE CIRCLE}"),
            (closed(Closure.RECOVERED), "\N{LARGE GREEN CIRCLE}"),
            (closed(Closure.JOB_ENDED), "\N{MEDIUM WHITE CIRCLE}"),
        ],
    )
    def test_the_state_has_a_colour(self, story: Story, sign: str) -> None:
        message = incident_message(story, cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert message.text.startswith(sign)
        assert message.blocks[0]["text"]["text"].startswith(sign)

    @pytest.mark.parametrize("cause", IncidentCause)
    def test_every_cause_has_a_headline_and_a_sentence(self, cause: IncidentCause) -> None:
        story = leak()
        about = replace(story.incident, key=story.incident.key._replace(cause=cause))
        told = incident(replace(story, incident=about))
        assert "ada's job 4711" in told

    def test_slack_recovering_incident_shows_evidence_and_no_predicted_oom(self) -> None:
        told = incident(recovering())
        assert "Stopped for now: memory leak in ada's job 4711" in told
        assert "It has stopped" in told
        assert "*Out of memory*" not in told

    def test_a_closed_one_says_how_it_ended_and_keeps_to_the_point(self) -> None:
        told = incident(closed())
        assert "Job ended: memory leak in ada's job 4711" in told
        assert "All processes of this attempt have ended. Closed at 08:00 UTC, after 15 min." in told
        assert "18.4 GiB in total" in told
        assert "*Peak severity*\ncritical" in told
        assert "*Look first at*" not in told
        assert "at this rate" not in told

    def test_slack_crashed_job_message_leads_with_the_crash(self) -> None:
        message = incident_message(crashed(), cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert message.text == (
            "\N{LARGE RED CIRCLE} ada's job 4711 crashed: CUDA OOM at step 1,040 on rank 5 (wanted 512.0 MiB, "
            "200.0 MiB free)"
        )
        assert owner(crashed()).startswith(
            "\N{LARGE RED CIRCLE} Your job 4711 crashed: CUDA OOM at step 1,040 on rank 5"
        )

    def test_the_crash_closes_the_thread_and_says_whether_to_retry(self) -> None:
        told = crashed().incident
        reply = read(change_reply(IncidentChange(ChangeKind.CLOSED, NOW_S, told)))
        assert "closed: the job crashed: CUDA OOM at step 1,040 on rank 5" in reply
        assert "the same job fails again with the same batch size" in incident(crashed())

    def test_an_error_that_is_over_before_it_is_told_is_told_with_its_figures(self) -> None:
        told = incident(crashed())
        assert (
            "Rank 5 of job 4711 ran out of GPU memory at 07:59:00 UTC (step 1,040): wanted 512.0 MiB, 200.0 MiB free. "
            "The job ended by it."
        ) in told
        assert "The card was full of live tensors: the same job fails again with the same batch size" in told
        assert "All processes of this attempt have ended. Closed at 07:59 UTC, after 40 s." in told

    def test_an_error_that_the_job_survived_is_told_with_its_figures_too(self) -> None:
        told = incident(crashed(Closure.RECOVERED))
        assert "Rank 5 of job 4711 ran out of memory at step 1,040: wanted 512.0 MiB, 200.0 MiB free." in told
        assert "The card was full of live tensors" in told

    def test_growth_that_ended_in_an_error_says_whether_to_retry(self) -> None:
        told = incident(Story(died_of_oom()))
        assert "the forecast of 07:59:32 UTC said 17\u201328 s" in told
        assert "Trying again would get as far again" in told

    def test_an_error_whose_rank_has_ended_has_not_stopped_for_now(self) -> None:
        died = crashed().incident
        end = OomEnd(5, oom_record(at_unix_s=NOW_S - 60.0, step=1_040))
        told = replace(died, state=IncidentState.RECOVERING, closure=None, closed_unix_s=None, ran_out=end)
        said = incident(Story(told))
        assert said.startswith("\N{LARGE RED CIRCLE} Rank 5 of ada's job 4711 crashed")
        assert "stopped" not in said

    def test_the_line_of_an_error_has_its_figures(self) -> None:
        said = read(change_reply(IncidentChange(ChangeKind.OPENED, NOW_S, out_of_memory().incident)))
        assert "opened, severity critical: rank 5, wanted 512.0 MiB, 200.0 MiB free" in said

    @pytest.mark.parametrize("story", [out_of_memory(), crashed(), crashed(Closure.CULPRITS_ENDED)])
    def test_channel_and_owner_see_the_same_sign(self, story: Story) -> None:
        assert incident(story)[0] == owner(story)[0] == "\N{LARGE RED CIRCLE}"

    def test_ranks_that_crashed_alone_are_named_instead_of_the_job(self) -> None:
        told = incident(crashed(Closure.CULPRITS_ENDED))
        assert "Rank 5 of ada's job 4711 crashed: CUDA OOM at step 1,040 (wanted 512.0 MiB, 200.0 MiB free)" in told

    def test_a_leak_whose_job_crashed_by_it_leads_with_the_crash(self) -> None:
        oom, leaking = crashed().incident.findings[0].oom, leak().incident.findings[0]
        assert oom is not None
        last = replace(leaking, step=oom.step, oom=oom)
        told = replace(closed().incident, findings=(last,), closed_unix_s=oom.at_unix_s + 5.0)
        assert "job 4711 crashed: CUDA OOM at step 1,040 on rank 3 (wanted" in incident(Story(told))

    def test_growth_that_ended_in_an_error_is_red_and_past(self) -> None:
        told = Story(died_of_oom())
        for message in (incident(told), owner(told)):
            assert message.startswith("\N{LARGE RED CIRCLE}")
            assert "job 4711 crashed: CUDA OOM at step 3,816 on rank 1 (wanted 20.0 MiB, 10.0 MiB free)" in message
            assert "runs out" not in message
            assert "If the growth continues" not in message
            assert "nded in incident 2 (out_of_memory)" in message

    def test_growth_whose_rank_died_while_others_hang_is_not_told_in_the_future(self) -> None:
        told = died_of_oom(state=IncidentState.OPEN, closure=None, closed_unix_s=None)
        hanging = replace(told, ran_out=told.ran_out and told.ran_out._replace(ended_job=False))
        message = incident(Story(hanging))
        assert "Rank 1 of ada's job 4711 crashed: CUDA OOM at step 3,816" in message
        assert "*Out of memory*" not in message

    @pytest.mark.parametrize(
        "story",
        [crashed(after_s=150.0), crashed(steps_after=1), crashed(Closure.RECOVERED), closed()],
        ids=["it ended much later", "it went on", "it recovered", "no error"],
    )
    def test_no_crash_is_claimed_that_is_not_known(self, story: Story) -> None:
        assert "crashed" not in incident(story)

    def test_old_figures_are_said_to_be_old(self) -> None:
        assert "figures are stale" in incident(leak(stale=True))
        assert "figures are stale" not in incident(leak())

    def test_what_no_earlier_run_did_is_told_to_the_channel_and_to_the_owner_without_markup(self) -> None:
        story = leak(change="its peak is beyond those of 12 earlier runs; since the last of them: script <!here>")
        for text in (incident(story), owner(story)):
            assert "Its peak is beyond those of 12 earlier runs; since the last of them: script" in text
            assert "<!here>" not in text

    def test_slack_incident_lists_actions_done_and_on_hold(self) -> None:
        told = incident(leak())
        assert "07:45 UTC: Owner notified: job output, Slack DM." in told
        assert "07:56 UTC: Checkpoint on hold: only 1 of 2 warnings" in told

    def test_slack_incident_in_observe_mode_names_the_action_it_would_take(self) -> None:
        assert "Mode observe, no action taken: the policy would requeue the job." in incident(fragmentation())

    def test_slack_incident_shows_an_action_in_progress_before_one_on_hold(self) -> None:
        busy = record(decision(ActionKind.CHECKPOINT, decided_s=NOW_S - 10.0), status=DecisionStatus.STARTED)
        story = leak()
        told = incident(replace(story, decisions=(story.decisions[0], busy, story.decisions[1])))
        assert "In progress: waiting for the job to checkpoint" in told
        assert "on hold" not in told

    def test_slack_incident_without_decisions_says_no_action_taken(self) -> None:
        assert "No action taken." in incident(outside())

    def test_links_lead_to_dashboard_job_report_exemption_and_question(self) -> None:
        message = incident_message(leak(), cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert links(message.blocks) == {
            "Dashboard": "https://grafana.example/d/tidegauge-job?var-cluster=prod&var-job_id=4711&var-attempt=0"
            "&from=1799997300250&to=now",
            "Job": "https://tidegauge.example/job?job_id=4711&attempt=0&uid=1001",
            "Report": "https://tidegauge.example/report?incident=12",
            "Keep my job running": "https://tidegauge.example/runbooks#keep-my-job-running",
            "Say whether it is a leak": "https://tidegauge.example/grade?incident=12",
        }

    def test_links_of_a_job_keep_its_true_id(self) -> None:
        one = leak().incident
        odd = replace(one, key=one.key._replace(job=one.key.job._replace(job_id="a<b&c d\n")))
        message = incident_message(Story(odd), cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert "var-job_id=a%3Cb%26c+d%0A&" in links(message.blocks)["Dashboard"]
        assert "/job?job_id=a%3Cb%26c+d%0A&attempt=" in links(message.blocks)["Job"]

    def test_slack_incident_without_configured_urls_has_no_links(self) -> None:
        message = incident_message(leak(), cluster="prod", links=Links(), now_unix_s=NOW_S)
        assert links(message.blocks) == {}
        assert [block["type"] for block in message.blocks].count("rich_text") == 0

    def test_a_fact_is_not_asked_about(self) -> None:
        one = leak().incident
        error = Story(replace(one, key=one.key._replace(cause=IncidentCause.OUT_OF_MEMORY)))
        message = incident_message(error, cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert "Say whether it is a leak" not in links(message.blocks)

    def test_a_job_that_has_ended_needs_no_link_to_keep_it_running(self) -> None:
        message = incident_message(closed(), cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert "Keep my job running" not in links(message.blocks)
        assert links(message.blocks)["Dashboard"].endswith("&to=1800001800250")


class TestEvidence:
    """Once the line, the holder or the cause are known."""

    def test_the_channel_reads_where_by_whom_and_why(self) -> None:
        told = incident(explained())
        assert (
            "\N{LEFT-POINTING MAGNIFYING GLASS} Rank 3 kept 1.0 GiB (35.8 MiB a step) in 30 steps, allocated at "
            "train.py:41 in step. It is held by train.py: Trainer.history (list, 412 items) \N{RIGHTWARDS ARROW} "
            "Tensor[8,286,4096] float32. Cause: tensors kept alive by Python references.\n"
            "\N{WRENCH} `Trainer.history` (list, train.py) keeps a tensor of each step: append `tensor.item()`"
        ) in told

    def test_a_line_of_the_thread_says_what_has_become_known(self) -> None:
        told = read(change_reply(explained().history[-1]))
        assert (
            "\N{LEFT-POINTING MAGNIFYING GLASS} 07:53 UTC: line found: train.py:41 in step, held by train.py: "
            "Trainer.history (list, 412 items); cause: tensors kept alive by Python references"
        ) in told

    def test_the_owner_reads_it_in_place_of_the_usual_places(self) -> None:
        told = owner(explained())
        assert "train.py:41 in step" in told
        assert "append `tensor.item()`" in told
        assert "Usual suspects" not in told
        assert "warning 1 of 2 before a stop" in told
        assert "start it with `tidegauge run --no-actions`" in told

    def test_the_owner_reads_what_an_out_of_memory_was_as_well(self) -> None:
        told = owner(out_of_memory(evidence=(FOUND,)), "Your job ran out of memory.")
        assert "The card was full of live tensors" in told
        assert "train.py:41 in step" in told

    def test_the_owner_is_told_later_what_became_known_later(self) -> None:
        told = read(owner_evidence(explained()))
        assert "Line found: train.py:41 in step, held by train.py: Trainer.history (list, 412 items)" in told
        assert "append `tensor.item()`" in told

    def test_slack_incident_says_cause_unknown(self) -> None:
        only_line = FOUND._replace(holder=None, cause=EvidenceCause.UNKNOWN, confidence=Confidence.UNKNOWN, advice=None)
        assert "allocated at train.py:41 in step. Cause unknown." in incident(leak(evidence=(only_line,)))

    def test_evidence_that_found_nothing_takes_no_room(self) -> None:
        nothing = EvidenceBrief("auto-1", 3, NOW_S)
        assert incident(leak(evidence=(nothing,))) == incident(leak())
        assert "lists of losses" in owner(leak(evidence=(nothing,)), "Your job leaks.")

    def test_of_several_ranks_the_one_that_says_something_is_told(self) -> None:
        nothing = EvidenceBrief("auto-1", 7, NOW_S)
        assert "Rank 3 kept 1.0 GiB" in incident(leak(evidence=(nothing, FOUND)))


class TestReplies:
    def test_a_change_is_said_with_its_time(self) -> None:
        told = read(change_reply(IncidentChange(ChangeKind.ESCALATED, NOW_S, leak().incident)))
        assert (
            "08:00 UTC: severity rose to critical: rank 3, 35.8 MiB per step, out of memory in 14\u201322 min" in told
        )

    @pytest.mark.parametrize("outcome", Outcome)
    @pytest.mark.parametrize("kind", ActionKind)
    def test_every_outcome_of_every_action_has_words_for_both_readers(self, kind: ActionKind, outcome: Outcome) -> None:
        done = record(decision(kind), outcome)
        in_channel, to_owner = read(action_reply(done)), read(owner_followup(done))
        assert "As the scheduler said" in read(action_reply(replace(done, detail="as the scheduler said")))
        assert "{" not in in_channel + to_owner
        assert "the job" in in_channel.lower() or "the owner" in in_channel
        assert "your job" in to_owner.lower() or " you" in to_owner

    def test_a_failure_does_not_read_like_a_success(self) -> None:
        checkpoint = decision(ActionKind.CHECKPOINT)
        assert "The job has saved a checkpoint" in read(action_reply(record(checkpoint, Outcome.DONE)))
        for outcome in set(Outcome) - {Outcome.DONE}:
            assert "has saved" not in read(action_reply(record(checkpoint, outcome)))

    def test_slack_reply_of_an_action_on_hold_names_brake_and_rule(self) -> None:
        held = decision(
            ActionKind.REQUEUE, disposition=Disposition.WITHHELD, brake="paused", reason="actions are paused", rung=3
        )
        told = read(action_reply(record(held)))
        assert "Requeue on hold: actions are paused" in told
        assert "rule leak, rung 4, mode act" in told

    def test_the_owner_hears_that_the_job_was_saved_and_starts_again(self) -> None:
        saved, again = closed().decisions[1:]
        assert "Your job has saved a checkpoint. 16 of 16 ranks saved at step 1,090" in read(owner_followup(saved))
        assert "Requeued your job: it starts again." in read(owner_followup(again))


class TestOwner:
    def test_the_policys_own_words_are_all_there(self) -> None:
        told = owner(leak())
        for line in str(notify_decision(leak()).parameters["text"]).splitlines():
            assert line in told

    def test_slack_owner_message_says_your_job(self) -> None:
        assert owner(leak()).startswith(
            "\N{LARGE RED CIRCLE} Memory leak in your job 4711: out of memory in 14\u201322"
        )

    def test_the_sentence_is_not_said_twice(self) -> None:
        sentence = "Rank 3 of job 4711 leaks 35.8 MiB per step since step 300"
        told = owner(leak(), f"{sentence}; at this rate it runs out of memory in 14\u201322 min.\nnext")
        assert told.count(sentence) == 1

    def test_advice_is_added_where_the_policys_text_has_none(self) -> None:
        assert owner(leak()).count("lists of losses") == 1
        assert owner(leak(), "Your job leaks.").count("lists of losses") == 1

    def test_line_and_holder_are_told_where_the_incident_has_them(self) -> None:
        story = leak(
            explanation="train.py:88 allocates it; history.losses holds it",
            snapshots=("/snapshots/12-1.pickle.gz",),
            reports=("/reports/12.html",),
        )
        told = owner(story, "Your job leaks.")
        assert "train.py:88 allocates it; history.losses holds it" in told, "a name from code stays what it is"
        assert "Snapshot: /snapshots/12-1.pickle.gz" in told
        assert "Report: /reports/12.html" in told

    def test_slack_owner_message_fits_a_phone_screen(self) -> None:
        message = owner_message(notify_decision(leak()), leak(), cluster="prod", links=LINKS, now_unix_s=NOW_S)
        assert len(message.blocks) <= 5
        assert len(read(message)) < 1_200


def test_growth_of_weeks_has_no_end_by_the_clock() -> None:
    note = replace(leak().incident, severity=Severity.NOTE)
    assert "it would take weeks to matter" in incident(Story(note))
    assert "*Out of memory*" not in incident(Story(note))


def test_a_share_that_is_exceeded_has_no_growth() -> None:
    one = replace(
        leak().incident,
        key=leak().incident.key._replace(cause=IncidentCause.SHARE_EXCEEDED),
        bytes_per_step=None,
        seconds_to_oom=None,
        findings=(finding(0, gpu=None, reserved_bytes=50 * GIB),),
    )
    told = incident(Story(one))
    assert "GPU share exceeded in ada's job 4711" in told
    assert "*Growth*" not in told
    assert "*Look first at*\nrank 0 on `node0`\n" in told
