"""What a job needs, what its GPUs have, and how the two are compared for Kueue's admission check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tidegauge.core.jobs.kubernetes import GPU_MEMORY, NEEDED_MEMORY
from tidegauge.estimator.results import FitVerdict
from tidegauge_scheduler_hooks.kubernetes.memory_check.judging import GpuPodSet, gpu_pod_sets, judge
from tidegauge_scheduler_hooks.kubernetes.memory_check.needs import (
    KnownNeed,
    RecordedNeeds,
    memory_bytes,
    stated_need,
)
from tidegauge_scheduler_hooks.kubernetes.memory_check.rooms import GpuRoom, room_of

GIB = 1 << 30
LINES = (
    f"team-a\ttrain\t{61 * GIB}\t4\t1",
    f"team-a\tnightly-28391040\t{10 * GIB}\t1\t0",
    f"team-a\tnightly-28392480\t{12 * GIB}\t2\t0",
    f"team-a\tsweep-x7k2p\t{5 * GIB}\t1\t0",
    f"team-a\tsweep-large-run\t{70 * GIB}\t1\t0",
    f"team-b\ttrain\t{GIB}\t1\t0",
    "a broken line\t7",
    f"team-a\ttrain\t{GIB}\t9\t9",
    "team-a\tnegative\t-1\t1\t0",
)


@pytest.fixture
def needs(tmp_path: Path) -> RecordedNeeds:
    file = tmp_path / "needs.tsv"
    file.write_text("".join(f"{line}\n" for line in LINES))
    return RecordedNeeds(file, now_s=lambda: 0.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("61Gi", 61 * GIB), ("61 GiB", 61 * GIB), ("0.5Gi", GIB // 2), ("80G", 80 * 10**9), ("1048576", 1 << 20),
     ("61e9", 61 * 10**9), ("6.1E+10", 61 * 10**9), ("61e9Gi", None), ("1e99", None), ("NaN", None), ("-5Gi", None),
     ("", None), (None, None), ("0Gi", None), ("-1Gi", None), ("much", None), ("9" * 15 + "Ti", None)],
)  # fmt: skip
def test_memory_is_read_as_kubernetes_and_people_write_it(text: str | None, expected: int | None) -> None:
    assert memory_bytes(text) == expected


def test_earlier_runs_are_found_by_namespace_and_name(needs: RecordedNeeds) -> None:
    found = needs.of_job("team-a", "train", {"metadata": {"name": "train"}})
    assert found is not None
    assert found.needed_bytes == 61 * GIB
    assert found.source == "the highest of 4 earlier runs of team-a/train, 1 of which ran out of memory"
    assert needs.of_job("team-c", "train", None) is None
    assert needs.of_job("team-a", "negative", None) is None


def test_runs_of_one_cron_job_and_of_one_generated_name_are_one_job(needs: RecordedNeeds) -> None:
    cron = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": "c", "controller": True}
    found = needs.of_job("team-a", "nightly-28393920", {"metadata": {"ownerReferences": [cron]}})
    assert found == KnownNeed(12 * GIB, "the highest of 3 earlier runs of team-a/nightly-*")
    found = needs.of_job("team-a", "sweep-bcdfg", {"metadata": {"generateName": "sweep-"}})
    assert found == KnownNeed(5 * GIB, "the highest of 1 earlier run of team-a/sweep-*")


def test_file_is_read_again_each_minute_and_may_be_made_later(tmp_path: Path) -> None:
    now_s, file = [0.0], tmp_path / "needs.tsv"
    needs = RecordedNeeds(file, now_s=lambda: now_s[0])
    assert needs.of_job("team-a", "train", None) is None
    file.write_text(LINES[0])
    now_s[0] = 59.0
    assert needs.of_job("team-a", "train", None) is None
    now_s[0] = 60.0
    assert needs.of_job("team-a", "train", None) is not None


def test_unreadable_file_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        RecordedNeeds(tmp_path, now_s=lambda: 0.0).of_job("team-a", "train", None)


@pytest.mark.parametrize(
    ("resource", "labels", "at_most_gib", "name"),
    [
        ("nvidia.com/mig-3g.40gb", {}, 40, "mig-3g.40gb"),
        ("nvidia.com/mig-1g.10gb.me", {"nvidia.com/gpu.memory": "81559"}, 10, "mig-1g.10gb"),
        ("nvidia.com/mig-1c.3g.40gb", {}, 40, "mig-1c.3g.40gb"),
        ("nvidia.com/gpu", {"nvidia.com/gpu.memory": "81920"}, 80, "flavor f"),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, 80, "NVIDIA-H100-80GB-HBM3"),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"}, 20,
         "NVIDIA-A100-SXM4-40GB-MIG-3g.20gb"),
        ("nvidia.com/gpu", {"cloud.google.com/gke-accelerator": "nvidia-l4"}, 22.03, "nvidia-l4"),
        ("nvidia.com/gpu", {"karpenter.k8s.aws/instance-gpu-memory": "24576"}, 24, "flavor f"),
    ],
)  # fmt: skip
def test_room_of_a_gpu_is_read_from_resource_and_labels(
    resource: str, labels: Mapping[str, str], at_most_gib: float, name: str
) -> None:
    room = room_of(resource, "f", labels, {})
    assert room == GpuRoom(int(at_most_gib * GIB), name)


@pytest.mark.parametrize(
    ("resource", "labels"),
    [
        ("nvidia.com/gpu", {}),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "NVIDIA-GH200-480GB"}),
        ("nvidia.com/gpu", {"nvidia.com/gpu.product": "A new one"}),
        ("nvidia.com/gpu", {"nvidia.com/gpu.memory": "0"}),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.memory": "81920"}),
    ],
)
def test_room_that_nobody_tells_is_not_guessed(resource: str, labels: Mapping[str, str]) -> None:
    assert room_of(resource, "f", labels, {}) is None


def test_admins_word_on_a_flavor_comes_before_its_labels() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert room_of("nvidia.com/gpu", "f", labels, {GPU_MEMORY: "64Gi"}) == GpuRoom(64 * GIB, "flavor f")


SLICE = GpuRoom(40 * GIB, "mig-3g.40gb")


def need(gib: float) -> KnownNeed:
    return KnownNeed(int(gib * GIB), "the highest of 4 earlier runs of team-a/train")


@pytest.mark.parametrize(
    ("gib", "verdict"),
    [(36.3, FitVerdict.FITS), (36.5, FitVerdict.TOO_CLOSE), (44.4, FitVerdict.TOO_CLOSE),
     (44.5, FitVerdict.DOES_NOT_FIT)],
)  # fmt: skip
def test_fits_and_will_not_fit_are_said_with_a_tenth_in_reserve(gib: float, verdict: FitVerdict) -> None:
    assert judge([GpuPodSet("main", None, SLICE)], need(gib)).verdict is verdict


def test_answer_says_need_evidence_and_room() -> None:
    assert judge([GpuPodSet("main", None, SLICE)], need(61)).text == (
        "Needs 61.0 GiB by the highest of 4 earlier runs of team-a/train: will not fit mig-3g.40gb (40.0 GiB at most)"
    )
    stated = stated_need({NEEDED_MEMORY: "61Gi"})
    assert judge([GpuPodSet("node", stated, SLICE)], None).text == (
        f"Pods node: needs 61.0 GiB by its annotation {NEEDED_MEMORY}: will not fit mig-3g.40gb (40.0 GiB at most)"
    )


def test_need_of_the_fullest_rank_is_held_against_the_largest_gpu() -> None:
    large = GpuPodSet("trainer", None, GpuRoom(80 * GIB, "h100"))
    small = GpuPodSet("evaluator", None, SLICE)
    assert judge([small, large], need(61)).verdict is FitVerdict.FITS
    assert judge([small, large._replace(room=None)], need(61)).verdict is None


def test_worst_of_what_templates_state_is_said() -> None:
    stated = {name: KnownNeed(size * GIB, "x") for name, size in (("a", 61), ("b", 5))}
    sets = [GpuPodSet(name, stated[name], SLICE) for name in ("b", "a")]
    answer = judge(sets, None)
    assert (answer.verdict, answer.text[:6]) == (FitVerdict.DOES_NOT_FIT, "Pods a")


def test_without_evidence_room_or_gpu_nothing_is_judged() -> None:
    assert judge([GpuPodSet("main", None, SLICE)], None).text == "Not compared: nothing is known of what it needs"
    assert judge([], need(61)).text == "It asks for no GPU"
    unknown = judge([GpuPodSet("main", None, None)], need(61))
    assert unknown.verdict is None
    assert unknown.text.endswith("and nobody says how much memory its GPUs have")


def test_pod_sets_are_read_with_flavors_and_node_selectors() -> None:
    def pod_set(name: str, **spec: Any) -> Mapping[str, Any]:
        return {"name": name, "template": {"metadata": {}, "spec": spec}}

    selector = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    workload = {
        "spec": {"podSets": [pod_set("launcher"), pod_set("workers"), pod_set("picky", nodeSelector=selector)]},
        "status": {
            "admission": {
                "podSetAssignments": [
                    {"name": "launcher", "flavors": {"cpu": "any"}},
                    {"name": "workers", "flavors": {"cpu": "any", "nvidia.com/gpu": "h100"}},
                    {"name": "picky", "flavors": {"nvidia.com/gpu": "any"}},
                ]
            }
        },
    }
    flavors = {"h100": {"metadata": {}, "spec": {"nodeLabels": {"nvidia.com/gpu.memory": "81920"}}}}
    found = gpu_pod_sets(workload, flavors.get)
    assert [(one.name, one.room and one.room.name) for one in found] == [
        ("workers", "flavor h100"),
        ("picky", "NVIDIA-L4"),
    ]
