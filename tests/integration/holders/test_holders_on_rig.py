"""Every leak of the zoo on the fake GPU: the search, in a thread beside training, names the true holder first."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakegpu.rig import Rig
from integration.needs import missing
from matrix import torches, turn

pytestmark = pytest.mark.rig

CHECKOUT = Path(__file__).parents[3]
JOB, STRESS = (Path(__file__).parent / name for name in ("search_the_zoo.py", "stress.py"))
ZOO = CHECKOUT / "tests" / "leak_zoo.py"
OTHER_RELEASES = ("2.9.1", "2.11.0", "2.15.0")
OTHERWISE_BUILT = ("graphs_in_list", "cycle_with_graph", "forward_hook", "function_context", "kept_exception")
"""Leaks whose finding depends on torch's own objects."""


class Truth(NamedTuple):
    kind: str
    words: tuple[str, ...]


def truths() -> dict[str, Truth]:
    """What ``leak_zoo.py`` says of its leaks, read without torch: the arguments of ``@leak``."""
    found = {}
    for node in ast.parse(ZOO.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "leak":
                    kind, *words = [ast.literal_eval(argument) for argument in decorator.args]
                    found[node.name] = Truth(kind, tuple(words))
    return found


OF_A_WINDOW = frozenset({"sample_beside_lengths", "autocast_cache", "ddp_buckets"})
"""Leaks that a search alone does not name: beside locals of the step in progress, which a window leaves out of what is
searched for, and those that C++ holds."""
ALL = {name: truth for name, truth in truths().items() if name not in OF_A_WINDOW}


def job(rig: Rig, script: Path, arguments: Iterable[str], scratch: Path) -> subprocess.CompletedProcess[str]:
    environ = rig.environ(devices=1, state=scratch / "gpus")
    environ["PYTHONPATH"] = f"{CHECKOUT / 'collector'}:{CHECKOUT / 'tests'}"
    return subprocess.run(
        [str(rig.python), str(script), *arguments],
        env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def searched(rig: Rig, names: Iterable[str], scratch: Path) -> dict[str, dict[str, Any]]:
    """The answers for these leaks, of one process."""
    done = job(rig, JOB, ("0", *names), scratch)
    assert done.returncode == 0, done.stderr[-3000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {answer["name"]: answer for answer in answers}


@pytest.fixture(scope="module")
def answers(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return searched(rig, ALL, tmp_path_factory.mktemp("zoo"))


def check(answer: dict[str, Any], truth: Truth) -> None:
    search = answer["search"]
    assert search["problem"] is None
    assert search["found_bytes"] > 0.9 * search["wanted_bytes"]
    first = search["holders"][0]
    assert first["kind"] == truth.kind, first
    for words in truth.words:
        assert words in first["path"], first
    assert first["held_bytes"] > 0.4 * search["wanted_bytes"], search["holders"]
    assert answer["undisturbed"], "the collector's settings or the allocated bytes changed"


def test_the_zoo_has_what_was_asked_for() -> None:
    assert {truth.kind for truth in ALL.values()} >= {
        "container", "closure", "hook", "exception", "autograd", "cycle", "optimizer", "thread", "attribute",
    }  # fmt: skip
    assert len(ALL) >= 20


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ALL)
def test_the_holder_is_named(answers: dict[str, dict[str, Any]], name: str) -> None:
    check(answers[name], ALL[name])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("release", torches(OTHER_RELEASES))
def test_the_holder_is_named_with_other_releases(release: str, tmp_path: Path) -> None:
    rig = Rig.of(release)
    reason = rig.available()
    if reason is not None:
        missing(reason)
    for name, answer in searched(rig, OTHERWISE_BUILT, tmp_path).items():
        check(answer, ALL[name])


def test_facts_of_a_job(answers: dict[str, dict[str, Any]]) -> None:
    facts = answers["cycle_with_graph"]["facts"]
    assert facts["gc_enabled"] is False
    assert facts["optimizers"] == 1
    assert facts["process_groups"] == 0
    assert facts["graph_nodes"] > 40 * 50
    assert facts["parameter_bytes"] > 2 * 11 * 128 * 128 * 4


@pytest.mark.timeout(300)
@turn(4)
def test_searching_all_the_while_does_not_end_the_process(rig: Rig, tmp_path: Path) -> None:
    names = ("outputs_list", "graphs_in_list")  # of ``stress.py``, whose reads of ``.grad`` once met ``zero_grad``
    done = job(rig, STRESS, ("10", *names), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(f", {name}: " in done.stdout for name in names)
