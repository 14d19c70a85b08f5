from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_values import HOLDER, LINE, evidence
from sample_views import MIB
from tidegauge.core.evidence import Evidence, StackGrowth, brief_of
from tidegauge.core.evidence import words as evidence_words
from tidegauge.core.evidence.brief import Confidence, EvidenceBrief, EvidenceCause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import Holder, HolderKind, HolderSearch
from tidegauge.core.evidence.words import (
    CAUSES,
    CONFIDENCES,
    because_lines,
    brief_facts,
    brief_line,
    brief_sentences,
    cause_words,
    evidence_sentence,
    file_name,
    holder_sentence,
    holder_words,
    line_words,
    named_holder,
)

BRIEF = brief_of(evidence())


def test_evidence_is_one_sentence_with_line_share_speed_and_holder() -> None:
    assert evidence_sentence(evidence()) == (
        "97 % of what grew on rank 1 in 30 steps was allocated at train.py:41 in step (11.6 MiB a step); it is held by "
        "train.py: Trainer.history (list, 412 items)."
    )


def test_blocks_that_no_python_object_refers_to_are_held_by_nothing() -> None:
    told = "no Python object found refers to 150 blocks, 291.0 MiB"
    rest = Holder(kind=HolderKind.NATIVE, path=told, held_bytes=291 * MIB, tensors=150)
    search = HolderSearch(holders=(rest,), wanted_bytes=300 * MIB, found_bytes=0)
    sentence = evidence_sentence(replace(evidence(), search=search))
    assert sentence.endswith(f"allocated at train.py:41 in step (11.6 MiB a step); {told}.")
    assert holder_sentence(search) == "No Python object found refers to 150 blocks, 291.0 MiB."


def test_a_search_that_goes_on_is_said_instead_of_a_cause() -> None:
    brief = BRIEF._replace(searching=True, cause=EvidenceCause.UNKNOWN, confidence=Confidence.UNKNOWN, holder=None)
    assert brief_facts(brief) == (
        "Rank 1 kept 348.0 MiB (11.6 MiB a step) in 30 steps, allocated at train.py:41 in step. "
        "The search for what holds it is not over yet."
    )


def test_stacks_through_one_line_count_together() -> None:
    other = StackGrowth(12 * MIB, 1, (LINE,), LINE, 12 * MIB)
    whole = replace(evidence(), growth=(*evidence().growth, other))
    assert evidence_sentence(whole).startswith("100 % of what grew on rank 1")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"search": None}, "97 % of what grew on rank 1 in 30 steps was allocated at train.py:41 in step (11.6 MiB a"),
        ({"early_step": None, "search": None}, "97 % of what grew on rank 1 was allocated at train.py:41 in step."),
        ({"growth": ()}, "360.0 MiB more is live on rank 1 in 30 steps; no stack shows where it was allocated."),
        ({"grown_bytes": 0}, "Nothing grew on rank 1 in 30 steps: no more memory is live at the end of the"),
        ({"grown_bytes": None}, "Nothing to compare on rank 1: it has no two snapshots."),
    ],
)
def test_evidence_sentence_omits_or_states_what_is_unknown(changed: dict[str, Any], words: str) -> None:
    told = evidence_sentence(replace(evidence(), **changed))
    assert told.startswith(words)
    assert "held by" not in told or "search" not in changed


class TestBrief:
    def test_fits_a_cell(self) -> None:
        assert brief_line(BRIEF) == "train.py:41 in step, held by train.py: Trainer.history (list, 412 items)"
        assert brief_line(BRIEF._replace(holder=None)) == "train.py:41 in step"
        assert brief_line(BRIEF._replace(line=None)) == "held by train.py: Trainer.history (list, 412 items)"
        assert brief_line(EvidenceBrief("auto-1", 1, 0.0)) is None

    def test_the_headline_has_the_line_and_its_caller(self) -> None:
        through = CodeLine("/home/ada/train.py", 261, "main")
        assert brief_line(BRIEF._replace(through=through, holder=None)) == (
            "train.py:41 in step, called from train.py:261 in main"
        )
        no_growth = brief_sentences(BRIEF._replace(through=through, grown_bytes=None))[0]
        assert "rank 1: train.py:41 in step, called from train.py:261 in main." in no_growth

    def test_in_sentences(self) -> None:
        assert brief_sentences(BRIEF) == (
            "Rank 1 kept 348.0 MiB (11.6 MiB a step) in 30 steps, allocated at train.py:41 in step. It is held by "
            "train.py: Trainer.history (list, 412 items) -> Tensor[8,128,4096] float32. Cause: tensors kept alive by "
            "Python references.",
            "`Trainer.history` keeps a tensor of each step: append `loss.item()`.",
        )

    def test_a_likely_cause_is_not_told_as_a_fact(self) -> None:
        assert "Likely cause: tensors kept alive" in brief_sentences(BRIEF._replace(confidence=Confidence.LIKELY))[0]
        assert brief_sentences(EvidenceBrief("auto-1", 1, 0.0)) == ("Cause unknown.",)


@pytest.mark.parametrize(
    ("filename", "words"),
    [
        ("/home/ada/run/train.py", "train.py:41 in step"),
        ("C:\\runs\\train.py", "train.py:41 in step"),
        ("train.py", "train.py:41 in step"),
        (f"/{'x' * 500}.py", f"{'x' * 57}.py:41 in step"),
    ],
)
def test_a_line_is_told_by_the_last_part_of_its_path(filename: str, words: str) -> None:
    assert line_words(CodeLine(filename, 41, "step")) == words


def test_a_holder_is_called_as_the_code_calls_it() -> None:
    assert named_holder(HOLDER._replace(where=LINE)) == "`Trainer.history` (list, train.py)"
    assert named_holder(HOLDER._replace(container=None, path="train.py: Trainer.history")) == "`Trainer.history`"
    assert named_holder(HOLDER._replace(name="hook closure's kept")) == "hook closure's kept (list)"
    assert named_holder(HOLDER._replace(name=None)) == "train.py: Trainer.history (list, 412 items)"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("train.py: losses (list, 9 items) -> Tensor[] float32", "train.py: losses (list, 9 items)"),
        (
            "train.py main(): trainer -> Trainer.seen (dict, 9 items) -> dict (2 items)['out'] -> Tensor[8,64] float32",
            "train.py main(): trainer -> Trainer.seen (dict, 9 items) -> dict (2 items)['out']",
        ),
        ("train.py: total -> Tensor[] float32 -> grad_fn AddBackward0, 3,082 nodes", "train.py: total"),
        ("train.py: embed -> Parameter[4096, 256] bfloat16, a view of a 4.0 MiB storage", "train.py: embed"),
        ("held by C++", "held by C++"),
    ],
)
def test_a_holder_is_told_without_the_tensor_that_it_leads_to(path: str, words: str) -> None:
    assert holder_words(path) == words


def test_a_holder_is_told_with_its_share() -> None:
    assert holder_sentence(HolderSearch((HOLDER,), 360 * MIB, 348 * MIB)) == (
        "train.py: Trainer.history (list, 412 items) -> Tensor[8,128,4096] float32 holds 97 % of it (29 tensors, "
        "348.0 MiB)."
    )
    assert holder_sentence(HolderSearch()) is None


def test_the_cause_of_an_optimizer_is_true_of_one_that_gains_parameters_too() -> None:
    assert cause_words(EvidenceCause.OPTIMIZER_REBUILT, Confidence.NAMED) == "optimizer state that accumulates"


def test_because_lines_are_sentences() -> None:
    assert because_lines(evidence()) == ["One line allocated 97 % of what grew.", "A list holds it."]


def test_every_cause_and_confidence_has_words() -> None:
    assert set(CAUSES) == set(EvidenceCause)
    assert set(CONFIDENCES) == set(Confidence)
    assert cause_words(EvidenceCause.CYCLE, Confidence.UNKNOWN) == "unknown"


@pytest.mark.parametrize("advice", [None, "", " ", "\r\n"])
def test_advice_of_nothing_is_none(advice: str | None) -> None:
    brief = brief_of(evidence())._replace(advice=advice)
    assert brief_sentences(brief) == (brief_facts(brief),)


@given(st.from_type(Evidence))
def test_whatever_a_rank_says_it_is_told_in_bounds(one: Evidence) -> None:
    brief = brief_of(one)
    long = evidence_words.MAX_PATH_CHARS + evidence_words.MAX_NAME_CHARS + 400
    assert len(evidence_sentence(one)) < long
    assert len(brief_line(brief) or "") < long
    assert all(len(text) < long + len(brief.advice or "") for text in brief_sentences(brief))


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/ada/lm/models/__init__.py", "models/__init__.py"),
        ("C:\\lm\\data\\utils.py", "data/utils.py"),
        ("models/main.py", "models/main.py"),
        ("/__main__.py", "__main__.py"),
        ("__main__.py", "__main__.py"),
        ("/home/ada/lm/train.py", "train.py"),
        ("<ipython-input-3-0123abcd>", "cell In [3]"),
        ("/tmp/ipykernel_123/4567.py", "notebook cell"),
    ],
)
def test_a_file_whose_name_says_nothing_alone_is_shown_with_its_folder(path: str, shown: str) -> None:
    assert file_name(path) == file_name(shown) == shown
