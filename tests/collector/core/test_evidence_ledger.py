"""Line and holder speak of the same blocks, and only what grew holds growth."""

from __future__ import annotations

from typing import Any

from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.causes import name_cause
from tidegauge.core.evidence.ledger import line_of, nodes_grown, one_each_step, without_addresses, without_still_graphs
from tidegauge.core.evidence.owners import CodeLine, CodeRoots
from tidegauge.core.evidence.rank_evidence import (
    NO_FACTS,
    ContainerBound,
    Holder,
    HolderKind,
    HolderSearch,
    RankFacts,
)
from tidegauge.core.verdicts import LeakState, Signal, Verdict

MIB = 1 << 20
STEPS = 30
KEPT = CodeLine("/home/ada/run/train.py", 210, "step")
FORWARD = CodeLine("/home/ada/run/model.py", 18, "forward")
LEAK = Verdict(LeakState.LEAK, signal=Signal.ALLOCATED, grown_bytes=2000 * MIB)
BLOCKS = tuple(range(1 << 32, (1 << 32) + STEPS * MIB, MIB))
LINES = dict.fromkeys(BLOCKS, KEPT)


def growth(line: CodeLine, size_bytes: int, blocks: int = STEPS) -> StackGrowth:
    return StackGrowth(size_bytes * blocks, blocks, (line,), line, size_bytes)


def holder(kind: HolderKind, held_bytes: int, **changes: Any) -> Holder:
    return Holder(kind, "train.py: kept (list, 114 items) -> Tensor[8]", held_bytes, STEPS, "kept")._replace(**changes)


LIST = holder(HolderKind.CONTAINER, STEPS * 512, container="list", items=114, blocks=BLOCKS)
NATIVE = Holder(HolderKind.NATIVE, "no Python object found refers to 150 blocks, 291.0 MiB", 291 * MIB, 150)
ONE_GRAPH = holder(HolderKind.AUTOGRAD, 40 * MIB, tensors=40, by_size_bytes=40 * MIB, detail="one graph of 121 nodes")


def case(*holders: Holder, wanted_bytes: int = 300 * MIB, **changes: Any) -> CauseInput:
    found = HolderSearch(holders, wanted_bytes, sum(one.held_bytes for one in holders))
    stacks = (growth(FORWARD, 10 * MIB), growth(KEPT, 512))
    base = CauseInput(stacks, 300 * MIB, window_steps=STEPS, verdict=LEAK, search=found, lines_by_block=LINES)
    return base._replace(**changes)


class TestGraphs:
    def test_a_graph_that_is_replaced_each_step_holds_no_window(self) -> None:
        """Autocast's cache: 40 blocks as large as some activation of the step's own graph."""
        facts = RankFacts(graph_nodes=121)
        found = without_still_graphs(HolderSearch((ONE_GRAPH,), 40 * MIB, 40 * MIB), nodes_grown(facts, facts))
        (left,) = found.holders
        assert (left.kind, left.held_bytes, left.tensors, found.found_bytes) == (HolderKind.NATIVE, 40 * MIB, 40, 0)

    def test_what_it_leaves_is_added_to_what_nothing_holds(self) -> None:
        found = without_still_graphs(HolderSearch((NATIVE, ONE_GRAPH), 331 * MIB, 40 * MIB), 0)
        assert [(one.kind, one.held_bytes) for one in found.holders] == [(HolderKind.NATIVE, 331 * MIB)]

    def test_graphs_that_became_more_hold_it(self) -> None:
        search = HolderSearch((ONE_GRAPH,), 40 * MIB, 40 * MIB)
        assert without_still_graphs(search, 3000) is search
        assert without_still_graphs(search, None) is search, "nobody counted"

    def test_graphs_of_a_library_are_not_counted_where_there_are_many_objects(self) -> None:
        where = CodeLine("/venv/lib/python3.12/site-packages/metrics/state.py", 0, "")
        search = HolderSearch((ONE_GRAPH._replace(where=where),), 40 * MIB, 40 * MIB)
        assert without_still_graphs(search, 0) is search
        assert (
            without_still_graphs(search, 0, CodeRoots(own=("/venv/lib/python3.12/site-packages/metrics/",))) != search
        )

    def test_sizes_alone_make_a_graph_likely_and_its_own_growth_names_it(self) -> None:
        sizes = tuple(growth(FORWARD, size * MIB, 2 * STEPS) for size in (1, 2, 4, 8))
        alone = case(ONE_GRAPH, wanted_bytes=40 * MIB, growth=sizes)
        grew = alone._replace(early_facts=RankFacts(graph_nodes=9000), facts=RankFacts(graph_nodes=9400))
        found = [(name_cause(one).cause, name_cause(one).confidence) for one in (alone, grew)]
        assert found == [
            (EvidenceCause.RETAINED_GRAPH, Confidence.LIKELY),
            (EvidenceCause.RETAINED_GRAPH, Confidence.NAMED),
        ]

    def test_nodes_that_nobody_counted_are_not_known(self) -> None:
        assert nodes_grown(NO_FACTS, RankFacts(graph_nodes=4)) is None


class TestSizes:
    def test_a_match_by_size_is_never_named(self) -> None:
        by_size = holder(HolderKind.ATTRIBUTE, 300 * MIB, by_size_bytes=300 * MIB, tensors=1)
        found = name_cause(case(by_size, growth=(growth(KEPT, 300 * MIB, 1),)))
        assert (found.cause, found.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.LIKELY)

    def test_less_than_half_of_the_growth_names_nothing(self) -> None:
        local = holder(HolderKind.FRAME, 141 * MIB, tensors=6, blocks=BLOCKS[:6])
        found = name_cause(case(local, growth=(growth(KEPT, 5 * MIB),)))
        assert found.confidence is Confidence.LIKELY


class TestOneEachStep:
    def test_is_named_whatever_its_bytes(self) -> None:
        found = name_cause(case(NATIVE, LIST))
        assert (found.cause, found.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)
        assert found.because[0] == "30 tensors of 30 steps are held by train.py: kept (list, 114 items)"
        assert "train.py:210 in step leaves 1 block behind each step" in found.because

    def test_other_numbers_are_none(self) -> None:
        steps = {len(blocks): one_each_step(HolderSearch((LIST._replace(blocks=blocks),)), STEPS) is not None
                 for blocks in (BLOCKS[:14], BLOCKS[:26], BLOCKS[:28], BLOCKS)}  # fmt: skip
        assert steps == {14: False, 26: False, 28: True, 30: True}

    def test_a_container_that_is_full_does_not_grow(self) -> None:
        full = ContainerBound(0, "deque", 114, 114, 30, 30 * 512, 512, 512)
        assert one_each_step(HolderSearch((LIST._replace(bound=full),)), STEPS) is None
        assert one_each_step(HolderSearch((LIST._replace(bound=full._replace(most_items=200)),)), STEPS) is not None

    def test_fewer_items_than_blocks_are_no_growth(self) -> None:
        assert one_each_step(HolderSearch((LIST._replace(items=3),)), STEPS) is None
        assert one_each_step(HolderSearch((LIST._replace(items=None),)), STEPS) is None


class TestLines:
    def test_the_line_is_the_holders(self) -> None:
        both = case(LIST._replace(held_bytes=200 * MIB))
        assert both.line == KEPT
        assert case(NATIVE).line == FORWARD

    def test_blocks_without_a_stack_have_none(self) -> None:
        assert line_of(LIST, {}) is None
        assert line_of(LIST, dict.fromkeys(BLOCKS)) is None

    def test_addresses_stay_on_the_node(self) -> None:
        assert without_addresses(HolderSearch((LIST,))).holders[0] == LIST._replace(blocks=())
