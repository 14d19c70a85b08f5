from __future__ import annotations

from typing import Any, Optional

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidegauge.core.evidence import PrivatePools, StackGrowth
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.cause_input import CauseInput, MemoryGrowth
from tidegauge.core.evidence.causes import RULES, name_cause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import (
    CHAIN,
    KEPT_BY_CTX,
    MADE_ANEW,
    Holder,
    HolderKind,
    HolderSearch,
    RankFacts,
)
from tidegauge.core.evidence.signs import SignSource
from tidegauge.core.evidence.workspaces import Workspaces, grown_workspaces
from tidegauge.core.verdicts import OK, Band, LeakState, Signal, Verdict

MIB = 1 << 20
STEPS = 30
LINE = CodeLine("/home/ada/run/train.py", 41, "step")
FORWARD = CodeLine("/home/ada/run/model.py", 18, "forward")
ADAM = CodeLine("/venv/lib/python3.12/site-packages/torch/optim/adam.py", 150, "_init_group")

DDP = CodeLine("/venv/lib/python3.12/site-packages/torch/nn/parallel/distributed.py", 1222, "_ddp_init_helper")


def growth(
    size_bytes: int = 4 * MIB, blocks: int = STEPS, line: CodeLine = LINE, stack: tuple[CodeLine, ...] = ()
) -> StackGrowth:
    return StackGrowth(size_bytes * blocks, blocks, (*stack, line), line, size_bytes)


def kept(kind: HolderKind, held: float = 1.0, wanted_bytes: int = 120 * MIB, **changes: Any) -> HolderSearch:
    """A search that found one holder, of this share of what was looked for."""
    holder = Holder(
        kind=kind,
        path="train.py: Trainer.history (list, 412 items) -> Tensor[8,128,1024] float32",
        held_bytes=int(held * wanted_bytes),
        tensors=STEPS,
        name="Trainer.history",
        where=CodeLine("/home/ada/run/train.py", 0, ""),
        container="list",
        items=412,
    )
    return HolderSearch((holder._replace(**changes),), wanted_bytes, int(held * wanted_bytes))


def grown(*growths: StackGrowth, **changes: Any) -> CauseInput:
    """A window in which these stacks grew."""
    whole = sum(one.grown_bytes for one in growths)
    base = CauseInput(growths, whole, window_steps=STEPS, verdict=grows(Signal.ALLOCATED))
    return base._replace(**changes)


def grows(signal: Optional[Signal]) -> Verdict:
    return OK if signal is None else Verdict(LeakState.LEAK, signal=signal, grown_bytes=2000 * MIB)


SAVED = tuple(growth(size * MIB, 2 * STEPS, FORWARD) for size in (1, 2, 4, 8, 16))
"""What a forward pass saves: many sizes."""
ONE = (growth(),)
"""One tensor of one line each step."""
FLAT = CauseInput((), 0, window_steps=STEPS)
POOLS = FLAT._replace(
    verdict=grows(Signal.RESERVED),
    reserved_grown_bytes=300 * MIB,
    unused_bytes=400 * MIB,
    early_pools=PrivatePools(20, 1300 * MIB, 100 * MIB),
    late_pools=PrivatePools(26, 1580 * MIB, 100 * MIB),
)
"""What gained 2,000 MiB since it began gains 280 of 300 MiB in six more private pools within the window."""

NAMED = {
    "list": (grown(*ONE, search=kept(HolderKind.CONTAINER)), EvidenceCause.PYTHON_CONTAINER),
    "attribute": (grown(*ONE, search=kept(HolderKind.ATTRIBUTE)), EvidenceCause.PYTHON_CONTAINER),
    "global": (grown(*ONE, search=kept(HolderKind.GLOBAL)), EvidenceCause.PYTHON_CONTAINER),
    "thread": (grown(*ONE, search=kept(HolderKind.THREAD)), EvidenceCause.PYTHON_CONTAINER),
    "frame": (grown(*ONE, search=kept(HolderKind.FRAME)), EvidenceCause.PYTHON_CONTAINER),
    "closure": (grown(*ONE, search=kept(HolderKind.CLOSURE)), EvidenceCause.CLOSURE),
    "hook": (grown(*ONE, search=kept(HolderKind.HOOK)), EvidenceCause.HOOK),
    "exception": (grown(*SAVED, search=kept(HolderKind.EXCEPTION)), EvidenceCause.EXCEPTION_FRAME),
    "graph": (grown(*SAVED, search=kept(HolderKind.AUTOGRAD)), EvidenceCause.RETAINED_GRAPH),
    "workspaces": (
        grown(
            growth(32 * MIB, 6),
            search=kept(HolderKind.NATIVE),
            workspaces=grown_workspaces([(32 * MIB, 0)], [(32 * MIB, stream) for stream in range(7)]),
        ),
        EvidenceCause.CUBLAS_WORKSPACES,
    ),
    "autocast": (
        grown(
            *ONE,
            search=kept(HolderKind.NATIVE),
            early_facts=RankFacts(graph_nodes=121, in_autocast=True),
            facts=RankFacts(graph_nodes=121, in_autocast=True),
        ),
        EvidenceCause.AUTOCAST_CACHE,
    ),
    "ddp": (grown(growth(stack=(DDP,)), search=kept(HolderKind.NATIVE)), EvidenceCause.DDP_BUCKETS),
    "cycle": (
        grown(*ONE, search=kept(HolderKind.CYCLE), facts=RankFacts(gc_enabled=False)),
        EvidenceCause.CYCLE,
    ),
    "optimizer": (
        grown(growth(stack=(ADAM,)), search=kept(HolderKind.OPTIMIZER)),
        EvidenceCause.OPTIMIZER_REBUILT,
    ),
    "optimizer in a list": (
        grown(
            growth(stack=(ADAM,)),
            search=kept(HolderKind.CONTAINER, held=0.1),
            early_facts=RankFacts(optimizers=1),
            facts=RankFacts(optimizers=4),
        ),
        EvidenceCause.OPTIMIZER_REBUILT,
    ),
    "graph that only C++ holds": (
        grown(
            *SAVED,
            search=kept(HolderKind.NATIVE),
            early_facts=RankFacts(graph_nodes=100),
            facts=RankFacts(graph_nodes=900),
        ),
        EvidenceCause.RETAINED_GRAPH,
    ),
    "graph in host memory": (
        FLAT._replace(
            verdict=grows(Signal.HOST), early_facts=RankFacts(graph_nodes=100), facts=RankFacts(graph_nodes=900)
        ),
        EvidenceCause.RETAINED_GRAPH,
    ),
    "pinned": (
        FLAT._replace(
            verdict=grows(Signal.HOST),
            readings=MemoryGrowth(host_bytes=900 * MIB),
            early_facts=RankFacts(pinned_bytes=100 * MIB),
            facts=RankFacts(pinned_bytes=800 * MIB),
        ),
        EvidenceCause.PINNED_HOST,
    ),
    "graph for each shape": (POOLS, EvidenceCause.CUDA_GRAPHS),
    "graphs whose results are kept": (
        grown(
            *ONE,
            search=kept(HolderKind.CONTAINER),
            reserved_grown_bytes=120 * MIB,
            early_pools=PrivatePools(3, 1000 * MIB, 400 * MIB),
            late_pools=PrivatePools(9, 1100 * MIB, 500 * MIB),
            early_facts=RankFacts(cuda_graphs=3),
            facts=RankFacts(cuda_graphs=9),
        ),
        EvidenceCause.CUDA_GRAPHS,
    ),
    "fragmentation": (FLAT._replace(verdict=grows(Signal.RESERVED)), EvidenceCause.FRAGMENTATION),
    "communicators": (
        FLAT._replace(
            verdict=grows(Signal.NONTORCH),
            early_facts=RankFacts(process_groups=24),
            facts=RankFacts(process_groups=27),
        ),
        EvidenceCause.COMMUNICATORS,
    ),
    "outside": (
        FLAT._replace(
            verdict=grows(Signal.NONTORCH),
            early_facts=RankFacts(process_groups=24),
            facts=RankFacts(process_groups=24),
        ),
        EvidenceCause.OUTSIDE_ALLOCATOR,
    ),
    "workers": (
        FLAT._replace(gpu_children=4, children_bytes=1600 * MIB, data_workers=4),
        EvidenceCause.DATALOADER_WORKER,
    ),
    "neighbour": (
        FLAT._replace(readings=MemoryGrowth(other_processes_bytes=900 * MIB)),
        EvidenceCause.OTHER_PROCESS,
    ),
}
"""Each cause by two sources that agree."""


@pytest.mark.parametrize("name", NAMED)
def test_a_cause_is_named_when_two_sources_agree(name: str) -> None:
    case, cause = NAMED[name]
    found = name_cause(case)
    assert (found.cause, found.confidence) == (cause, Confidence.NAMED)
    assert len(found.because) >= 2
    assert found.advice


@pytest.mark.parametrize("name", NAMED)
def test_evidence_without_a_verdict_may_say_the_same_but_never_another_cause(name: str) -> None:
    case, cause = NAMED[name]
    assert name_cause(case._replace(verdict=OK)).cause in (cause, EvidenceCause.UNKNOWN)


def test_every_cause_has_a_case() -> None:
    assert {cause for _, cause in NAMED.values()} == set(EvidenceCause) - {EvidenceCause.UNKNOWN}


@pytest.mark.parametrize(
    ("case", "cause"),
    [
        (grown(growth(blocks=7), growth(3 * MIB, 5), growth(5 * MIB, 9), growth(7 * MIB, 2),
               search=kept(HolderKind.CONTAINER)), EvidenceCause.PYTHON_CONTAINER),
        (grown(*ONE, search=kept(HolderKind.CYCLE), facts=RankFacts(gc_enabled=True)), EvidenceCause.CYCLE),
        (grown(*SAVED, search=kept(HolderKind.NATIVE)), EvidenceCause.RETAINED_GRAPH),
        (CauseInput(verdict=grows(Signal.RESERVED)), EvidenceCause.FRAGMENTATION),
        (CauseInput(verdict=grows(Signal.NONTORCH)), EvidenceCause.OUTSIDE_ALLOCATOR),
        (FLAT._replace(gpu_children=1, children_bytes=400 * MIB, grown_bytes=None), EvidenceCause.DATALOADER_WORKER),
    ],
)  # fmt: skip
def test_name_cause_from_one_source_is_likely(case: CauseInput, cause: EvidenceCause) -> None:
    found = name_cause(case)
    assert (found.cause, found.confidence) == (cause, Confidence.LIKELY)


class TestRateOfReadings:
    """Items of many sizes, now and then: snapshots show no pattern, but what the run showed from outside agrees."""

    MANY = grown(
        growth(blocks=7), growth(3 * MIB, 5), growth(5 * MIB, 9), growth(7 * MIB, 2),
        search=kept(HolderKind.CONTAINER, wanted_bytes=102 * MIB),
    )  # fmt: skip

    def at(self, mib_per_step: float, *, signal: Signal = Signal.ALLOCATED) -> CauseInput:
        rate = Band(mib_per_step * MIB * 0.9, mib_per_step * MIB, mib_per_step * MIB * 1.1)
        return self.MANY._replace(verdict=grows(signal)._replace(bytes_per_step=rate))

    def test_that_agrees_names_the_holder(self) -> None:
        found = name_cause(self.at(3.0))
        assert (found.cause, found.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)
        assert found.because[-1] == (
            "the rank has grown by 3.0 MiB a step since the growth began, and this keeps 3.4 MiB of each step"
        )

    @pytest.mark.parametrize("mib_per_step", [2.6, 4.4])
    def test_that_differs_by_more_than_a_quarter_does_not(self, mib_per_step: float) -> None:
        assert name_cause(self.at(mib_per_step)).confidence is Confidence.LIKELY

    def test_of_host_memory_or_of_a_few_steps_does_not(self) -> None:
        assert name_cause(self.at(3.4, signal=Signal.HOST)).confidence is Confidence.LIKELY
        few = self.at(3.4)._replace(window_steps=5)
        assert name_cause(few).confidence is Confidence.LIKELY


class TestAutocast:
    def test_is_no_cause_outside_of_it_or_of_graphs_that_grow_or_of_a_search_that_was_cut_short(self) -> None:
        case, _ = NAMED["autocast"]
        assert case.search is not None
        others = [
            case._replace(facts=case.facts._replace(in_autocast=False)),
            case._replace(facts=case.facts._replace(graph_nodes=900)),
            case._replace(search=case.search._replace(problem="cut short")),
            case._replace(search=kept(HolderKind.CONTAINER)),
        ]
        assert EvidenceCause.AUTOCAST_CACHE not in [name_cause(other).cause for other in others]


class TestNotKnown:
    def test_the_line_is_named_all_the_same(self) -> None:
        found = name_cause(grown(growth(blocks=20), growth(9 * MIB, 1, FORWARD)))
        assert (found.cause, found.confidence) == (EvidenceCause.UNKNOWN, Confidence.UNKNOWN)
        assert found.because == (
            "89.0 MiB more is alive at the end of the window; the line that allocated most of it is train.py:41 in "
            "step",
        )
        assert found.advice == ("what train.py:41 in step allocates stays alive: look for what keeps a reference to it")

    def test_a_holder_of_little_explains_nothing(self) -> None:
        assert name_cause(grown(*ONE, search=kept(HolderKind.CONTAINER, held=0.3))).cause is EvidenceCause.UNKNOWN
        assert name_cause(grown(*ONE, search=kept(HolderKind.CONTAINER, held=0.5))).cause is not EvidenceCause.UNKNOWN

    def test_without_stacks_there_is_no_advice(self) -> None:
        found = name_cause(grown(StackGrowth(9 * MIB, 9, (), None, MIB)))
        assert found.because == (
            "9.0 MiB more is alive at the end of the window, allocated where no stack was recorded",
        )
        assert found.advice is None

    def test_name_cause_says_so_if_nothing_grew(self) -> None:
        assert name_cause(FLAT).because == ("no more is alive at the end of the window than at its beginning",)

    def test_name_cause_says_so_if_no_snapshots_were_compared(self) -> None:
        assert name_cause(CauseInput()).because == ("there are no two snapshots to compare",)

    def test_an_incomplete_search_that_found_nothing_speaks_for_nothing(self) -> None:
        cut = kept(HolderKind.NATIVE)._replace(problem="time was up")
        assert name_cause(grown(*SAVED, search=cut)).cause is EvidenceCause.UNKNOWN


class TestNotBlamed:
    """What is there in every job, and explains nothing."""

    def test_workers_that_hold_a_context_while_a_list_grows(self) -> None:
        case = grown(*ONE, search=kept(HolderKind.CONTAINER), gpu_children=4, children_bytes=1600 * MIB, data_workers=4)
        assert name_cause(case).cause is EvidenceCause.PYTHON_CONTAINER
        assert name_cause(case._replace(search=None)).cause is EvidenceCause.UNKNOWN

    def test_workers_while_the_process_grows_outside_the_allocator(self) -> None:
        case = FLAT._replace(verdict=grows(Signal.NONTORCH), gpu_children=4, children_bytes=1600 * MIB)
        assert name_cause(case).cause is EvidenceCause.OUTSIDE_ALLOCATOR

    def test_process_groups_that_do_not_rise(self) -> None:
        facts = RankFacts(process_groups=134)
        case = FLAT._replace(verdict=grows(Signal.NONTORCH), facts=facts, early_facts=facts)
        assert name_cause(case).cause is EvidenceCause.OUTSIDE_ALLOCATOR

    def test_gc_that_is_off_while_a_list_grows(self) -> None:
        case = grown(*ONE, search=kept(HolderKind.CONTAINER), facts=RankFacts(gc_enabled=False))
        assert name_cause(case).cause is EvidenceCause.PYTHON_CONTAINER

    def test_a_list_that_keeps_too_little_to_scatter_the_memory(self) -> None:
        few = grown(growth(2 * MIB), search=kept(HolderKind.CONTAINER, wanted_bytes=2 * MIB * STEPS))
        since = Verdict(LeakState.LEAK, signal=Signal.RESERVED, grown_bytes=2000 * MIB, onset_step=900)
        case = few._replace(verdict=since, late_step=940, readings=MemoryGrowth(allocated_bytes=60 * MIB))
        assert name_cause(case).cause is EvidenceCause.FRAGMENTATION

    def test_a_list_of_a_few_tensors_while_the_allocator_is_fragmented(self) -> None:
        case = grown(growth(512), search=kept(HolderKind.CONTAINER, wanted_bytes=512), verdict=grows(Signal.RESERVED))
        assert name_cause(case).cause is EvidenceCause.FRAGMENTATION


class TestScatteredTensors:
    """Reserved memory that grows around tensors which stay: whoever keeps them is the cause."""

    SINCE = Verdict(LeakState.LEAK, signal=Signal.RESERVED, grown_bytes=1080 * MIB, onset_step=84)
    STAY = grown(
        growth(8 * MIB, 2),
        search=kept(HolderKind.CONTAINER, wanted_bytes=16 * MIB),
        verdict=SINCE,
        late_step=723,
        readings=MemoryGrowth(allocated_bytes=512 * MIB, inactive_split_bytes=160 * MIB),
    )
    """16 of 1,080 MiB within the window, but 341 MiB at that rate since the growth began."""

    def test_name_the_holder(self) -> None:
        found = name_cause(self.STAY)
        assert (found.cause, found.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)
        assert found.explains_reserved
        assert found.because[-1] == "the allocator reserves ever more around tensors that stay"

    def test_leave_fragmentation_likely_where_no_holder_is_sure(self) -> None:
        for search in (None, kept(HolderKind.CONTAINER, wanted_bytes=16 * MIB, name=None)):
            found = name_cause(self.STAY._replace(search=search))
            assert (found.cause, found.confidence) == (EvidenceCause.FRAGMENTATION, Confidence.LIKELY)
            assert not found.explains_reserved

    def test_are_not_inferred_from_a_window_that_readings_contradict(self) -> None:
        flat = self.STAY.readings._replace(allocated_bytes=2 * MIB)
        found = name_cause(self.STAY._replace(readings=flat))
        assert (found.cause, found.confidence) == (EvidenceCause.FRAGMENTATION, Confidence.NAMED)


class TestPrivatePools:
    """Growth that lies in private pools is of CUDA graphs, and nothing that expandable segments cure."""

    def test_says_what_was_seen_and_never_advises_the_setting(self) -> None:
        found = name_cause(POOLS._replace(facts=RankFacts(cuda_graphs=26), early_facts=RankFacts(cuda_graphs=20)))
        assert found.because == (
            "280.0 MiB of the 300.0 MiB that were gained between the two snapshots lie in private pools (CUDA graphs, "
            "MemPool)",
            "the allocator reserves ever more, beyond what live tensors explain",
            "private pools rose from 20 to 26 within the window",
            "CUDA graphs that are alive rose from 20 to 26 within the window",
        )
        advice = found.advice or ""
        assert "26 CUDA graphs are alive; private pools hold 1.5 GiB" in advice
        assert "create one `pool = torch.cuda.graph_pool_handle()` and pass `pool=pool` to each" in advice
        assert advice.endswith("`expandable_segments:True` does not help")

    def test_a_shared_pool_that_grows_is_one_too(self) -> None:
        shared = POOLS._replace(early_pools=PrivatePools(1, 1300 * MIB, 0), late_pools=PrivatePools(1, 1580 * MIB, 0))
        assert name_cause(shared).cause is EvidenceCause.CUDA_GRAPHS

    def test_growth_of_the_common_pool_beside_graphs_that_do_not_grow_is_fragmentation(self) -> None:
        beside = POOLS._replace(early_pools=POOLS.late_pools, unused_bytes=2400 * MIB)
        assert name_cause(beside).cause is EvidenceCause.FRAGMENTATION
        few = POOLS._replace(early_pools=PrivatePools(1, 0, 0), late_pools=PrivatePools(2, 290 * MIB, 0))
        assert name_cause(few).cause is EvidenceCause.FRAGMENTATION, "290 MiB do not explain 2,000"

    def test_a_window_in_which_nothing_was_recorded_is_told_by_where_the_unused_memory_lies(self) -> None:
        still = POOLS._replace(reserved_grown_bytes=0, early_pools=POOLS.late_pools)
        found = name_cause(still)
        assert (found.cause, found.confidence) == (EvidenceCause.CUDA_GRAPHS, Confidence.NAMED)
        assert "1.4 GiB lie unused in private pools (CUDA graphs, MemPool), and 400.0 MiB elsewhere" in found.because

    def test_some_growth_elsewhere_within_the_window_does_not_outweigh_where_all_of_it_lies(self) -> None:
        for grown_bytes in (10 * MIB, 100 * MIB):
            case = POOLS._replace(reserved_grown_bytes=grown_bytes, early_pools=POOLS.late_pools)
            assert name_cause(case).cause is EvidenceCause.CUDA_GRAPHS
        either = POOLS._replace(
            reserved_grown_bytes=10 * MIB, early_pools=POOLS.late_pools, unused_bytes=1500 * MIB
        )  # fmt: skip
        assert name_cause(either).cause is EvidenceCause.UNKNOWN

    def test_name_cause_is_unknown_if_two_causes_are_possible(self) -> None:
        either = POOLS._replace(reserved_grown_bytes=0, early_pools=POOLS.late_pools, unused_bytes=1500 * MIB)
        assert name_cause(either).cause is EvidenceCause.UNKNOWN

    def test_a_list_of_tensors_in_one_mempool_is_a_list(self) -> None:
        early, late = PrivatePools(1, 900 * MIB, 800 * MIB), PrivatePools(1, 1100 * MIB, 1000 * MIB)
        case = grown(*ONE, search=kept(HolderKind.CONTAINER), early_pools=early, late_pools=late)
        assert name_cause(case).cause is EvidenceCause.PYTHON_CONTAINER
        assert name_cause(case._replace(verdict=OK, reserved_grown_bytes=200 * MIB)).cause is (
            EvidenceCause.PYTHON_CONTAINER
        )

    def test_some_MiB_in_a_pool_that_nobody_suspects_say_nothing(self) -> None:
        early, late = PrivatePools(1, 2 * MIB, 0), PrivatePools(2, 22 * MIB, 0)
        case = FLAT._replace(reserved_grown_bytes=20 * MIB, early_pools=early, late_pools=late)
        assert name_cause(case).cause is EvidenceCause.UNKNOWN


class TestAdvice:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("Trainer.losses", "append `loss.detach().cpu()`"),
            ("outputs", "append `output.detach().cpu()`"),
            ("Trainer.certainties", "append `certainty.detach().cpu()`"),
            ("batches", "append `batch.detach().cpu()`"),
            ("boxes", "append `box.detach().cpu()`"),
            ("history", "append `tensor.detach().cpu()`"),
        ],
    )
    def test_is_in_the_words_of_the_code(self, name: str, words: str) -> None:
        advice = name_cause(grown(*ONE, search=kept(HolderKind.CONTAINER, name=name))).advice or ""
        assert advice.startswith(f"`{name}` (list, train.py) keeps a tensor of each step: {words}")

    def test_an_item_that_is_no_tensor_has_no_name_of_its_container(self) -> None:
        path = "train.py: replays (list, 45 items) -> function -> a default of replay -> Tensor[8] float32"
        advice = name_cause(grown(*ONE, search=kept(HolderKind.CONTAINER, name="replays", path=path))).advice or ""
        assert "append `tensor.detach().cpu()`" in advice

    def test_a_name_that_is_no_name_of_the_code_is_not_quoted_as_one(self) -> None:
        advice = name_cause(grown(*ONE, search=kept(HolderKind.HOOK, name="hook closure's outputs"))).advice or ""
        assert advice.startswith("hook closure's outputs (list, train.py) keeps what the hook sees")

    def test_a_container_in_a_container_is_called_by_the_one_with_the_name(self) -> None:
        path = "train.py: Trainer.history (deque, 45 items) -> tuple (2 items) -> Tensor[8] float32"
        advice = name_cause(grown(*ONE, search=kept(HolderKind.CONTAINER, path=path, container="tuple"))).advice or ""
        assert advice.startswith("`Trainer.history` (deque, train.py) keeps a tensor of each step: append")

    def test_name_cause_names_a_single_growing_tensor_with_advice(self) -> None:
        search = kept(HolderKind.ATTRIBUTE, path="train.py: Model.seen -> Tensor[385,64]", name="Model.seen",
                      container=None, tensors=1)  # fmt: skip
        found = name_cause(grown(StackGrowth(120 * MIB, 0, (LINE,), LINE), search=search))
        assert found.confidence is Confidence.NAMED
        assert found.advice == (
            "`Model.seen` (train.py) is one tensor that becomes larger, at train.py:41 in step: bound its length, or "
            "keep the older part on the CPU"
        )

    def test_tensors_in_a_list_that_become_larger_are_not_appended(self) -> None:
        search = kept(HolderKind.CONTAINER, path="train.py: Memory.keys (list, 3 items) -> Tensor[385,64]", items=3,
                      name="Memory.keys", tensors=3, detail=f"{MADE_ANEW}: gone")  # fmt: skip
        advice = name_cause(grown(StackGrowth(120 * MIB, 0, (LINE,), LINE), search=search)).advice
        assert advice == (
            "`Memory.keys` (list, train.py) has tensors that become larger, at train.py:41 in step: bound their "
            "length, or keep the older parts on the CPU"
        )

    def test_what_a_data_set_keeps_may_be_a_cache_that_is_full_after_an_epoch(self) -> None:
        item = LINE._replace(function="__getitem__")
        data, other = (name_cause(grown(growth(line=line), search=kept(HolderKind.CONTAINER))) for line in (item, LINE))
        assert (data.advice or "").endswith(". If it caches a data set, it is full after the first epoch")
        assert "epoch" not in (other.advice or "")

    def test_a_cache_needs_a_size(self) -> None:
        search = kept(HolderKind.CONTAINER, path="train.py: positions -> lru_cache of positions -> Tensor[8]",
                      name="lru_cache of positions", container=None)  # fmt: skip
        assert "give it a `maxsize`" in (name_cause(grown(*ONE, search=search)).advice or "")

    def test_a_dict_is_stored_into(self) -> None:
        path = "train.py: Trainer.history (dict, 412 items) -> Tensor[8] float32"
        advice = name_cause(grown(*ONE, search=kept(HolderKind.CONTAINER, path=path))).advice or ""
        assert "store `tensor.detach().cpu()`" in advice
        assert "deleting the entries" in advice

    def test_of_single_numbers_an_item_is_enough(self) -> None:
        path = "train.py: losses (list, 412 items) -> Tensor[] float32"
        search = kept(HolderKind.CONTAINER, wanted_bytes=512 * STEPS, name="losses", path=path)
        case = grown(growth(512), search=search)
        assert name_cause(case).advice == (
            "`losses` (list, train.py) keeps a tensor of each step: append `loss.item()`, which is a Python number"
        )

    @pytest.mark.parametrize("kind", [HolderKind.CONTAINER, HolderKind.AUTOGRAD])
    @pytest.mark.parametrize(
        "tail",
        [
            "Tensor[8,120,2048] float32",
            "Tensor[64,3,64,64] float32 -> grad_fn TanhBackward0, 22 nodes each",
            "Tensor[2] float32",
            "Tensor",
        ],
    )
    def test_of_more_than_one_number_there_is_no_item(self, kind: HolderKind, tail: str) -> None:
        path = f"demo_job.py main(): outputs (list, 136 items) -> {tail}"
        search = kept(kind, name="outputs", path=path, detail="30 graphs of 660 nodes")
        advice = name_cause(grown(growth(512), search=search)).advice or ""
        assert "item()" not in advice
        assert "append `output.detach().cpu()`" in advice

    @pytest.mark.parametrize("shape", ["", "1", "1,1"])
    def test_of_a_graph_of_one_number_an_item_is_enough(self, shape: str) -> None:
        path = f"train.py: losses (list, 45 items) -> Tensor[{shape}] float32 -> grad_fn MeanBackward0, 9 nodes each"
        search = kept(HolderKind.AUTOGRAD, name="losses", path=path, detail="45 graphs of 405 nodes")
        assert (name_cause(grown(*SAVED, search=search)).advice or "").endswith("append `loss.item()`")

    def test_a_deque_and_a_queue_have_bounds_of_their_own(self) -> None:
        path = "train.py: seen (deque, 45 items) -> Tensor[8,4] float32"
        search = kept(HolderKind.CONTAINER, name="seen", path=path, container="deque")
        assert (name_cause(grown(*ONE, search=search)).advice or "").endswith("bound it, by its `maxlen`")
        path = "train.py: Queue.queue (deque, 45 items) -> Tensor[8,4] float32"
        search = kept(HolderKind.CONTAINER, name="Queue.queue", path=path, container="deque")
        assert "give the queue a `maxsize`" in (name_cause(grown(*ONE, search=search)).advice or "")

    def test_a_hook_is_removed(self) -> None:
        assert "call `handle.remove()`" in (name_cause(NAMED["hook"][0]).advice or "")

    def test_numbered_names_become_one_name(self) -> None:
        path = "train.py fit(): model -> Net.feature_* (176 attributes) -> Tensor[8,4] float32"
        search = kept(HolderKind.ATTRIBUTE, name="Net.feature_*", path=path, container="attributes", items=176)
        found = name_cause(grown(*ONE, search=search))
        assert (found.cause, found.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)
        assert "`Net.feature_*` (attributes, train.py) gain a name in each step: assign to one" in (found.advice or "")

    @pytest.mark.parametrize("kind", [HolderKind.FRAME, HolderKind.CLOSURE])
    def test_a_chain_is_not_lengthened(self, kind: HolderKind) -> None:
        path = "train.py fit(): latest -> Node.previous (repeated 145 times) -> Node.state -> Tensor[8,4] float32"
        search = kept(kind, name="latest", path=path, container=CHAIN, items=146)
        advice = name_cause(grown(*ONE, search=search)).advice or ""
        assert "`latest` (chain, train.py) leads to a chain of 146 links that gains one" in advice
        assert "in each step (Node.previous): drop the reference to the link before" in advice

    def test_a_chain_of_exceptions_is_cut(self) -> None:
        path = "train.py: Trainer.error -> __cause__ (repeated 90 times) -> traceback -> out in step() -> Tensor[8]"
        search = kept(HolderKind.EXCEPTION, name="out in step()", path=path, container=CHAIN, items=91)
        found = name_cause(grown(*ONE, search=search))
        assert found.cause is EvidenceCause.EXCEPTION_FRAME
        assert "91 exceptions (train.py: Trainer.error -> __cause__ (repeated 90 times)) keeps" in (found.advice or "")
        assert "`raise ... from None`" in (found.advice or "")

    def test_a_tee_is_read_at_one_pace(self) -> None:
        path = "train.py: behind -> _tee_dataobject -> _tee_dataobject -> Tensor[8,4] float32"
        search = kept(HolderKind.GLOBAL, name="behind", path=path, container=None, items=None)
        advice = name_cause(grown(*ONE, search=search)).advice or ""
        assert "`behind` (train.py) lags behind another iterator" in advice

    @pytest.mark.parametrize("kind", [HolderKind.CONTAINER, HolderKind.CYCLE, HolderKind.HOOK, HolderKind.AUTOGRAD])
    def test_a_holder_without_a_name_is_likely_at_most(self, kind: HolderKind) -> None:
        path = "tuple (2 items) -> Tensor[8,4] float32"
        search = kept(kind, name=None, where=None, path=path, container="tuple", items=2)
        found = name_cause(grown(*ONE, search=search, facts=RankFacts(gc_enabled=False)))
        assert found.confidence is Confidence.LIKELY
        assert any("; no name that leads to it was found" in reason for reason in found.because)

    def test_a_holder_without_a_name_has_advice_of_where_to_look(self) -> None:
        path = "tuple (2 items) -> Tensor[8,4] float32"
        search = kept(HolderKind.CONTAINER, name=None, where=None, path=path, container="tuple", items=2)
        advice = name_cause(grown(*ONE, search=search)).advice or ""
        assert "tuple (2 items), with tensors from train.py:41 in step, has no name that was found" in advice

    def test_a_function_is_registered_with_atexit_once(self) -> None:
        path = "atexit callbacks (206 items) -> tuple (2 items) -> Tensor[8,4] float32"
        search = kept(HolderKind.CONTAINER, name=None, where=None, path=path, container="tuple", items=2)
        assert "register a function with `atexit` once" in (name_cause(grown(*ONE, search=search)).advice or "")

    def test_what_only_cpp_keeps_is_looked_for_there(self) -> None:
        search = kept(HolderKind.NATIVE, name=None, where=None, container=None, items=None)
        for problem, words in (
            (None, "no Python object refers to it"),
            ("cut short", "look for what keeps a reference"),
        ):
            found = name_cause(grown(*ONE, search=search._replace(problem=problem)))
            assert found.cause is EvidenceCause.UNKNOWN
            assert words in (found.advice or "")

    def test_one_optimizer_is_not_told_to_be_one(self) -> None:
        case = grown(growth(stack=(ADAM,)), search=kept(HolderKind.OPTIMIZER), facts=RankFacts(optimizers=1))
        assert "create the optimizer once" not in (name_cause(case).advice or "")

    @pytest.mark.parametrize(("early", "recreated"), [(2, False), (1, True), (None, True)])
    def test_of_two_optimizers_one_may_gain_parameters(self, early: Optional[int], recreated: bool) -> None:
        """A GAN has two from the first step on."""
        search = kept(HolderKind.OPTIMIZER, path="main.py: optimizerD -> Adam.state (dict, 3 items)")
        case = grown(
            growth(stack=(ADAM,)), search=search, early_facts=RankFacts(optimizers=early), facts=RankFacts(optimizers=2)
        )
        advice = name_cause(case).advice or ""
        assert ("create the optimizer once" in advice) is recreated
        assert ("gains parameters" in advice) is not recreated
        assert "main.py: optimizerD" in advice

    def test_a_view_keeps_more_than_itself(self) -> None:
        path = "train.py: views (list, 45 items) -> Tensor[128] float32, a view of a 4.0 MiB storage"
        advice = name_cause(grown(*ONE, search=kept(HolderKind.CONTAINER, name="views", path=path))).advice or ""
        assert "a view keeps all of its storage: append `view.detach().cpu()`" in advice

    def test_a_variable_that_sums_up_losses(self) -> None:
        detail = "one graph of 3,082 nodes; the blocks have the sizes of what came out of AddmmBackward0"
        path = "train.py: total_loss -> Tensor[] float32 -> grad_fn AddBackward0, 3,082 nodes"
        search = kept(HolderKind.AUTOGRAD, name="total_loss", container=None, detail=detail, path=path)
        assert name_cause(grown(*SAVED, search=search)).advice == (
            "`total_loss` (train.py) carries the graph of every step that went into it: add `loss.item()` (or "
            "`loss.detach()`) to it, not the tensor"
        )

    def test_an_attribute_of_many_objects_is_no_sum(self) -> None:
        search = kept(HolderKind.AUTOGRAD, name="Node.loss", container=None, detail="47 graphs of 3,102 nodes")
        assert "keeps tensors together with the graphs" in (name_cause(grown(*SAVED, search=search)).advice or "")

    def test_an_exception_is_told_by_what_keeps_it(self) -> None:
        path = "train.py main(): errors (list, 47 items) -> ValueError -> traceback -> batch in failing() -> Tensor[8]"
        search = kept(HolderKind.EXCEPTION, path=path, name="batch in failing()")
        assert (name_cause(grown(*SAVED, search=search)).advice or "").startswith(
            "a stored exception (train.py main(): errors (list, 47 items) -> ValueError) keeps all local"
        )

    def test_a_graph_without_a_holder_names_the_line(self) -> None:
        advice = name_cause(grown(*SAVED, search=kept(HolderKind.NATIVE, name=None))).advice or ""
        assert "model.py:18 in forward" in advice
        assert "torch.no_grad()" in advice

    def test_a_holder_in_a_librarys_file_comes_with_the_users_lines(self) -> None:
        linear = CodeLine("/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 0, "")
        search = kept(HolderKind.HOOK, name="Linear.bias", where=linear, container=None)
        advice = name_cause(grown(*ONE, search=search, through=CodeLine("/home/ada/run/train.py", 60, "main"))).advice
        assert (advice or "").startswith(
            "`Linear.bias` (linear.py), with tensors from train.py:41 in step, called from train.py:60 in main, keeps "
            "what the hook sees"
        )

    def test_cycles_with_gc_off_say_so(self) -> None:
        assert "gc is off" in (name_cause(NAMED["cycle"][0]).advice or "")

    def test_ctx_that_keeps_its_own_output_has_an_advice_of_its_own(self) -> None:
        case = NAMED["cycle"][0]
        assert case.search is not None
        holder = case.search.holders[0]._replace(name="SwishBackward.y", detail=KEPT_BY_CTX)
        search = case.search._replace(holders=(holder, *case.search.holders[1:]))
        assert "`ctx.save_for_backward`" in (name_cause(case._replace(search=search)).advice or "")

    def test_children_are_not_called_workers_unless_they_are(self) -> None:
        case = NAMED["workers"][0]
        assert (name_cause(case).advice or "").startswith("DataLoader workers of the rank use the GPU (4, 1.6 GiB)")
        assert "if they are DataLoader workers" in (name_cause(case._replace(data_workers=0)).advice or "")


@given(st.from_type(CauseInput))
@example(CauseInput(workspaces=Workspaces(block_bytes=0, blocks=0, streams=0, grown_bytes=1, most_blocks=0)))
def test_whatever_a_rank_says_there_is_an_answer(case: CauseInput) -> None:
    found = name_cause(case)
    assert (found.cause is EvidenceCause.UNKNOWN) == (found.confidence is Confidence.UNKNOWN)
    assert found.because
    if found.confidence is Confidence.NAMED:
        assert len(found.because) >= 2


def test_no_rule_can_be_named_by_one_source_alone() -> None:
    for rule in RULES:
        assert len({sign.source for sign in (*rule.needs, *rule.also)}) > 1 or not rule.also, rule.cause
    assert {sign.source for rule in RULES for sign in (*rule.needs, *rule.also)} == set(SignSource)
