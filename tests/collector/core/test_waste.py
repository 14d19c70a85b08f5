from __future__ import annotations

from typing import Any

import pytest

from sample_views import GIB
from tidegauge.core.jobs.right_size import GpuUsage, LeftOut, SizedUsage
from tidegauge.core.jobs.waste import HOUR_S, WasteRules, parse_left_out, wasteful

RULES = WasteRules(min_gpu_hours=100.0, max_used_share=0.5, min_runs=3)


def job(name: str = "train", user_name: str = "ada", *, hours: float = 100.0, **changes: Any) -> SizedUsage:
    """A job with GPUs of 80 GiB that needed 8 GiB."""
    told = GpuUsage(
        name, user_name, runs=4, ooms=0, gpus=8, gpu_seconds=hours * HOUR_S,
        had_byte_seconds=hours * HOUR_S * 80 * GIB, needed_byte_seconds=hours * HOUR_S * 8 * GIB,
        limit_bytes=80 * GIB, highest_bytes=9 * GIB, mean_bytes=8.5 * GIB, gpu_bytes=80 * GIB,
    )  # fmt: skip
    return SizedUsage.of(told._replace(**changes), [])


def test_users_whose_jobs_left_most_unused_come_first_and_so_do_their_jobs() -> None:
    found = wasteful([job(hours=50), job("big", hours=90), job("x", "bob", hours=200)], RULES)
    assert [(one.user_name, [each.usage.name for each in one.jobs]) for one in found] == [
        ("bob", ["x"]), ("ada", ["big", "train"]),
    ]  # fmt: skip
    ada = found[1]
    assert ada.gpu_seconds == 140 * HOUR_S
    assert ada.unused_byte_seconds == pytest.approx(140 * HOUR_S * 72 * GIB)
    assert ada.used_share == pytest.approx(0.1)


@pytest.mark.parametrize(
    "not_told",
    [
        job(hours=99.9),
        job(runs=2),
        job(ooms=1),
        job(needed_byte_seconds=100 * HOUR_S * 40.1 * GIB),
        job(highest_bytes=76 * GIB),
        job(had_byte_seconds=0.0),
    ],
    ids=["short", "few runs", "ran out of memory", "used more than half", "nothing smaller fits", "unknown"],
)
def test_who_is_within_the_rules_is_not_told(not_told: SizedUsage) -> None:
    assert wasteful([not_told], RULES) == []


def test_a_job_without_advice_adds_nothing_to_a_user_who_is_told() -> None:
    (ada,) = wasteful([job(), job("full", highest_bytes=76 * GIB)], RULES)
    assert [each.usage.name for each in ada.jobs] == ["train"]


def test_the_setting_leaves_out_what_it_names() -> None:
    text = "user=ada, user=bob,account=ops,partition=debug,namespace=ci, name=jupyter*,"
    assert parse_left_out(text) == LeftOut(("ada", "bob"), ("ops",), ("debug",), ("ci",), ("jupyter*",))
    assert parse_left_out("") == LeftOut()


@pytest.mark.parametrize("text", ["ada", "user=", "host=x", "user"])
def test_a_setting_that_names_nothing_known_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is none of user=NAME, account=NAME"):
        parse_left_out(text)
