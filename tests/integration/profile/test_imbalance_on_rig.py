"""Ranks whose memory differs for a reason that is known: their recorded profiles tell it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import tidegauge
from fakegpu.rig import Rig
from integration.server_process import free_port
from matrix import in_turns
from rank_profiles import rank_profile
from tidegauge.analysis.profile.imbalance_words import imbalance_sentence
from tidegauge.core import wire
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.imbalance import ImbalanceKind, cause_of, imbalance_of
from tidegauge.core.profile.rank_profile import RankProfile, parts_of
from tidegauge.core.profile.step_profile import StepProfile

pytestmark = pytest.mark.rig

JOB = Path(__file__).parents[1] / "rig_jobs" / "uneven_ranks.py"
GIVE_UP_S = 200.0
MIB = 1 << 20
EMBEDDING_BYTES = 8 * MIB


def profiles(case: str, rig: Rig, scratch: Path) -> list[StepProfile]:
    environ = rig.environ(devices=2, state=scratch / "gpus")
    environ["PYTHONPATH"] = str(Path(str(tidegauge.__file__)).parents[1])
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [str(rig.python), str(JOB), case, str(rank), port],
            env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outs = [rank.communicate(timeout=GIVE_UP_S)[0] for rank in ranks]
    return [wire.from_wire(StepProfile, json.loads(out.splitlines()[-1])) for out in outs]


def reported(profiles: list[StepProfile]) -> list[RankProfile]:
    return [replace(rank_profile(rank), **parts_of(one)) for rank, one in enumerate(profiles)]


@pytest.mark.parametrize(
    ("case", "kind", "part", "words"),
    in_turns(
        [
            ("copy", ImbalanceKind.MODEL_COPY, None, "an extra copy of the model's parameters"),
            ("stage", ImbalanceKind.MODEL_PART, Category.OPTIMIZER_STATE, "most in Stage.embed ("),
            ("batch", ImbalanceKind.BATCH, Category.ACTIVATIONS, "the same lines hold"),
            ("loss", ImbalanceKind.LINE, None, "uneven_ranks.py:"),
            ("sharded", ImbalanceKind.OPTIMIZER_STATE, Category.OPTIMIZER_STATE, "for as many parameters"),
        ]
    ),
)
def test_the_cause_is_the_one_that_the_job_was_given(
    case: str, kind: ImbalanceKind, part: Category | None, words: str, rig: Rig, tmp_path: Path
) -> None:
    found = profiles(case, rig, tmp_path)
    uneven = imbalance_of(reported(found))
    assert uneven is not None
    assert (uneven.rank, uneven.peer) == (0, 1)
    assert uneven.excess_bytes == found[0].peak.allocated_bytes - found[1].peak.allocated_bytes
    cause = cause_of(uneven, *found)
    assert cause.kind is kind
    assert part in (None, cause.part)
    assert words in imbalance_sentence(uneven, cause)
    print(imbalance_sentence(uneven, cause))


def test_ranks_that_do_the_same_are_equal(rig: Rig, tmp_path: Path) -> None:
    assert imbalance_of(reported(profiles("even", rig, tmp_path))) is None
