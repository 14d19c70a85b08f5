"""What owners are told: never more than will happen, and always what they can do."""

from __future__ import annotations

from typing import Any

import pytest

from policy_runs import Run, policy
from scheduler_values import JOB, facts, scheduler_facts, target
from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents import IncidentCause, IncidentKey
from tidegauge_scheduler_hooks.policy.rungs import PLACEHOLDERS

SAVE = (
    "[{action: notify}, {action: notify, after: 5m}, {action: checkpoint, after: 5m, before_oom: 30m},"
    " {action: requeue, alloc_conf: {expandable_segments: True}}]"
)


def first_text(ladder: str = SAVE, *, mode: str = "act", of_job: dict[str, Any] | None = None, **incident: Any) -> str:
    run = Run(policy(ladder, mode=mode, warnings_before_stop=2), of_job=facts(**(of_job or {})), **incident)
    run.at(0)
    return run.text()


def caused_by(cause: IncidentCause) -> dict[str, Any]:
    return {"key": IncidentKey(JOB, cause)}


def test_a_warning_says_who_what_when_what_next_and_what_to_do() -> None:
    assert first_text().splitlines() == [
        "Incident 1: job 4711 (llm-pretrain), user ada; warning 1 of 2 before a stop.",
        "Rank 1 of job 4711 leaks 12.0 MiB per step since step 40; at this rate it runs out of memory in 14–22 min.",
        "If the growth continues, Tidegauge will checkpoint this job, then requeue it with expandable_segments:True: "
        "not before 08:10 UTC, and only once OOM may be 30 min or less away (it waits up to 10 min for the "
        "checkpoint).",
        "Live tensors accumulate: something keeps references from step to step. Usual suspects: lists of losses or "
        "outputs without .detach(), module hooks that store activations, caches without a bound.",
        "To exempt the job from actions: start it with `tidegauge run --no-actions`.",
    ]


@pytest.mark.parametrize("others", [(), ("replica 1", "replica 2")])
def test_who_runs_a_server_is_threatened_with_nothing_and_not_asked_for_a_checkpoint(others: tuple[str, ...]) -> None:
    only_told = scheduler_facts(only_told="a Deployment serves requests, and Tidegauge never acts on one")
    unable = {"checkpoint": None, "groups_without_checkpoint": others}
    text = first_text(of_job={"scheduler_facts": only_told, **unable})
    assert text.splitlines()[0] == "Incident 1: job 4711 (llm-pretrain), user ada."
    assert (
        "Tidegauge takes no action on this job: a Deployment serves requests, and Tidegauge never acts on one." in text
    )
    assert "checkpoint" not in text
    assert "exempt" not in text


def of_workload(job_id: str) -> dict[str, Any]:
    """The job as the Kubernetes adapter knows it."""
    return {"target": target(JobKey(JobId(job_id), 0, 1001), scheduler="kubernetes"), "job_name": "train"}


def test_the_owner_of_a_workload_is_told_a_command_that_can_be_copied_and_its_name_once() -> None:
    job = JobKey(JobId("team-a/train"), 0, 1001)
    said = first_text(of_job=of_workload("team-a/train"), key=IncidentKey(job, IncidentCause.LEAK)).splitlines()
    assert said[0].startswith("Incident 1: job team-a/train, user ada; warning 1 of 2")
    assert said[-1] == (
        "To exempt the job from actions: annotate its workload: `kubectl annotate --overwrite -n team-a "
        "KIND train tidegauge.dev/actions=keep` (KIND: job, jobset, …)."
    )


@pytest.mark.parametrize("claimed", ["a/b/c", "team-a/x; rm -rf .", "4711"])
def test_no_name_that_a_job_made_up_gets_into_a_command(claimed: str) -> None:
    said = first_text(of_job=of_workload(claimed)).splitlines()
    assert "-n NAMESPACE KIND NAME tidegauge.dev/actions=keep" in said[-1]
    assert claimed not in said[-1]


def test_the_second_warning_is_called_so() -> None:
    run = Run(policy(SAVE, warnings_before_stop=2))
    run.until(300)
    assert "warning 2 of 2" in run.text()


def test_observe_words_it_as_act_would() -> None:
    assert first_text(mode="observe") == first_text(mode="act")


def test_warning_in_warn_mode_threatens_no_action() -> None:
    text = first_text(mode="warn")
    assert "Tidegauge takes no action on this job." in text
    assert "warning 1" not in text
    assert "--no-actions" not in text


def test_an_exempt_job_is_told_that_it_is() -> None:
    text = first_text(of_job={"scheduler_facts": scheduler_facts(exempt=True)})
    assert "Tidegauge takes no action on this job: the owner opted out of actions." in text
    assert "warning" not in text


@pytest.mark.parametrize(
    ("rung", "expected"),
    [
        ("{action: cap}", "cap this job at its share (memory fraction 0.4)."),
        ("{action: hold}", "stop this job and hold it until a person releases it."),
        ("{action: cancel}", "cancel this job."),
        ("{action: requeue}", "requeue this job."),
    ],
)
def test_each_action_is_announced(rung: str, expected: str) -> None:
    assert f"If the growth continues, Tidegauge will {expected}" in first_text(
        f"[{{action: notify}}, {rung}]", of_job={"cap_fraction": 0.4}
    )


def test_a_requeue_that_is_used_up_is_announced_as_what_is_done_instead() -> None:
    run = Run(policy("[{action: notify}, {action: requeue}]", requeues_per_job=0))
    run.at(0)
    assert "Tidegauge will stop this job and hold it" in run.text()


def test_a_text_of_the_site_gets_what_is_next_added_unless_it_says_it() -> None:
    text = first_text("[{action: notify, text: 'Hello {user}, {job_name} has {time_left} left.'}, {action: cancel}]")
    assert text == (
        "Hello ada, llm-pretrain has 14–22 min left.\nIf the growth continues, Tidegauge will cancel this job."
    )  # fmt: skip
    assert first_text("[{action: notify, text: '{next}'}, {action: cancel}]").count("Tidegauge") == 1
    assert first_text("[{action: notify, text: 'Hello.'}]") == "Hello."


def test_every_placeholder_can_be_filled_in() -> None:
    template = " | ".join(f"{{{name}}}" for name in PLACEHOLDERS)
    text = first_text(f"[{{action: notify, text: '{template}'}}]", explanation="because", seconds_to_oom=None)
    assert text.count(" | ") == len(PLACEHOLDERS) - 1
    assert "{" not in text
    assert "an unknown time" in text


def test_the_owner_of_a_fragmenting_job_is_told_the_setting_for_this_torch() -> None:
    known = caused_by(IncidentCause.FRAGMENTATION)
    assert "Against fragmentation, start the job with PYTORCH_ALLOC_CONF=expandable_segments:True." in first_text(
        **known
    )
    old = {"torch_version": "2.4.0", "alloc_conf": "max_split_size_mb:64"}
    assert "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True." in first_text(of_job=old, **known)
    cured = first_text(of_job={"alloc_conf": "expandable_segments:True"}, **known)
    assert "The setting is already in force" in cured


def test_the_owner_of_a_job_with_ever_more_cuda_graphs_is_told_to_share_a_pool() -> None:
    text = first_text("[{action: notify}]", **caused_by(IncidentCause.CUDA_GRAPHS))
    assert "in private pools of CUDA graphs" in text
    assert "share one pool (pool= of torch.cuda.graph). Allocator settings do not help." in text
    assert "expandable_segments" not in text


def test_a_job_that_cannot_be_saved_is_told_how_it_could_be() -> None:
    assert "tidegauge.on_checkpoint_request(fn)" in first_text(of_job={"checkpoint": None})


def test_an_oom_is_explained() -> None:
    known = caused_by(IncidentCause.OUT_OF_MEMORY)
    text = first_text("[{action: notify}]", explanation="the card was full; trying again will not help.", **known)
    assert "The card was full; trying again will not help." in text


def test_warning_of_an_exceeded_share_names_the_memory_fraction() -> None:
    known = caused_by(IncidentCause.SHARE_EXCEEDED)
    assert "memory fraction of 0.25" in first_text("[{action: notify}]", of_job={"cap_fraction": 0.25}, **known)


@pytest.mark.parametrize(
    ("scheduler", "expected"),
    [
        ("ray", 'metadata {"tidegauge.actions": "off"}'),
        ("slurm", "`scontrol update JobId=4711 Comment=tidegauge:keep`"),
        ("other", "ask the cluster's admins"),
    ],
)
def test_the_way_out_is_the_schedulers_own(scheduler: str, expected: str) -> None:
    assert expected in first_text(of_job={"target": target(scheduler=scheduler)})
