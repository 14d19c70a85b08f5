# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import gc
import sys
import threading
import unittest
from types import ModuleType, SimpleNamespace
from typing import Any

from probe_fakes import MIB, FakeBackend, block, fake_torch, torch_snapshot
from tidegauge.core.allocator.trace import Action, BlockState
from tidegauge.core.snapshot_columns import EXPANDABLE, LARGE, pack, unpack
from tidegauge.probe.evidence.snapshot_packing import ACTIONS, STATES, let_go, pack_columns
from tidegauge.probe.faults import Faults
from tidegauge.probe.pacing import REST_S, SLICE_S, Pacer, StoppedError
from tidegauge.probe.runtime.backend import Cuda
from tidegauge.probe.runtime.history import History
from tidegauge.probe.runtime.rank_snapshot import (
    MAX_BLOCKS,
    MAX_EVENTS,
    NoSnapshotError,
    RankSnapshots,
    RawSnapshot,
)
from tidegauge.probe.runtime.undisturbed import collector_held_off, compiler_left_alone
from waiting import PATIENCE_S

PACER = Pacer(sleep=lambda _seconds: None)


class Taking(unittest.TestCase):
    def setUp(self) -> None:
        self.backend = FakeBackend()
        self.backend.snapshot_taken = torch_snapshot([block(4096, MIB, 3)], events=2)
        self.history = History(self.backend.torch, Faults())
        self.used = [0]
        self.snapshots = RankSnapshots(
            self.backend, self.history, identity=lambda: None, devices=lambda: self.used, steps=lambda: 12
        )

    def allocations(self, current: int, allocated: int = 5, freed: int = 0) -> None:
        self.backend.stats[0]["allocation"]["all"].update(current=current, allocated=allocated, freed=freed)

    def test_snapshot_records_total_bytes_step_and_recorder_that_torch_omits(self) -> None:
        self.history.begin(entries=100, step=4)
        facts = self.snapshots.take(most_events=0).facts
        self.assertEqual((facts["torch_version"], facts["step"], facts["total_bytes"]), ("2.13.0", 12, 8192 * MIB))
        self.assertEqual((facts["recording"], facts["history_began_step"]), ("ours", 4))

    def test_events_come_along_only_if_they_are_few_enough(self) -> None:
        self.history.begin(entries=100, step=0)
        self.allocations(5, allocated=1000)
        for most_events, expected in ((0, False), (99, False), (100, True)):
            with self.subTest(most_events):
                self.snapshots.take(most_events=most_events)
                self.assertEqual(self.backend.snapshots_with_history[-1], expected)

    def test_a_ring_that_is_nearly_empty_has_no_more_events_than_there_were(self) -> None:
        self.history.begin(entries=50_000, step=0)
        self.allocations(5, allocated=10, freed=5)
        self.snapshots.take(most_events=20)
        self.assertEqual(self.backend.snapshots_with_history, [True])

    def test_the_jobs_own_events_are_counted_from_the_beginning(self) -> None:
        self.backend.recording.of_the_job(max_entries=10)
        self.allocations(5, allocated=1000)
        raw = self.snapshots.take(most_events=100)
        self.assertEqual((self.backend.snapshots_with_history, raw.facts["recording"]), ([False], "job's"))

    def test_a_torch_that_cannot_leave_events_out_brings_a_bounded_number(self) -> None:
        self.backend.leaves_events_out = False
        self.history.begin(entries=MAX_EVENTS, step=0)
        self.allocations(5, allocated=10 * MAX_EVENTS)
        self.snapshots.take(most_events=0)
        self.assertEqual(self.backend.snapshots_with_history, [False, True])

    def test_and_is_not_asked_for_more(self) -> None:
        self.backend.leaves_events_out = False
        self.backend.recording.of_the_job()
        self.allocations(5, allocated=MAX_EVENTS + 1)
        with self.assertRaisesRegex(NoSnapshotError, r"2\.13\.0 cannot leave out the events"):
            self.snapshots.take(most_events=100)
        self.assertEqual(self.backend.snapshots_with_history, [False])

    def test_so_many_blocks_that_training_would_be_held_up_are_left_alone(self) -> None:
        self.allocations(MAX_BLOCKS + 1)
        with self.assertRaisesRegex(NoSnapshotError, "30,001 memory blocks"):
            self.snapshots.take(most_events=0)
        self.assertEqual(self.backend.snapshots_with_history, [])

    def test_a_device_without_snapshots_is_named(self) -> None:
        self.backend.snapshot_taken = None
        with self.assertRaisesRegex(NoSnapshotError, "no snapshots for CUDA"):
            self.snapshots.take(most_events=0)

    def test_before_a_device_is_used_there_is_nothing(self) -> None:
        self.used = []
        with self.assertRaisesRegex(NoSnapshotError, "has not used a device"):
            self.snapshots.take(most_events=0)


class Undisturbed(unittest.TestCase):
    def test_the_compiler_is_not_imported_by_the_question_whether_it_was(self) -> None:
        torch = ModuleType("torch")
        asked: list[str] = []
        torch.__getattr__ = asked.append  # type: ignore[method-assign] # SAFETY: torch loads lazily so
        with compiler_left_alone(torch):
            self.assertFalse(hasattr(torch._inductor, "codecache"))
        self.assertEqual((asked, "_inductor" in vars(torch)), ([], False))

    def test_a_compiler_that_is_there_is_asked(self) -> None:
        real = SimpleNamespace(codecache="there")
        torch = fake_torch(_inductor=real)
        with compiler_left_alone(torch):
            self.assertIs(torch._inductor, real)
        self.assertIs(torch._inductor, real)

    def test_a_compiler_that_another_thread_imports_meanwhile_stays(self) -> None:
        torch, real = fake_torch(), SimpleNamespace()
        with compiler_left_alone(torch):
            torch._inductor = real
        self.assertIs(torch._inductor, real)

    def test_other_threads_get_the_real_one(self) -> None:
        torch = fake_torch()
        real = ModuleType("torch._inductor")
        real.config = "real"  # type: ignore[attr-defined] # SAFETY: what a job might look up
        self.addCleanup(sys.modules.pop, "torch._inductor", None)
        sys.modules["torch._inductor"] = real
        seen: list[Any] = []
        with compiler_left_alone(torch):
            thread = threading.Thread(target=lambda: seen.append(torch._inductor.config))
            thread.start()
            thread.join(PATIENCE_S)
        self.assertEqual(seen, ["real"])

    def test_the_collector_is_held_off_and_left_as_it_was(self) -> None:
        self.addCleanup(gc.enable)
        for enabled in (True, False):
            with self.subTest(enabled):
                (gc.enable if enabled else gc.disable)()
                with self.assertRaises(KeyError), collector_held_off():
                    self.assertFalse(gc.isenabled())
                    raise KeyError
                self.assertEqual(gc.isenabled(), enabled)

    def test_torch_is_asked_so(self) -> None:
        seen: list[bool] = []

        def take(arguments: tuple[int, int, bool]) -> dict[str, Any]:
            seen.extend([gc.isenabled(), hasattr(torch._inductor, "codecache"), arguments[2]])
            return {}

        cuda = SimpleNamespace(memory_stats_as_nested_dict=dict)
        torch = fake_torch(__version__="2.11.0", cuda=cuda, _C=SimpleNamespace(_cuda_memorySnapshot=take))
        Cuda(torch).snapshot(history=True)
        self.assertEqual(seen, [False, False, True])


class Packing(unittest.TestCase):
    def packed(self, content: dict[str, Any]) -> Any:
        return unpack(pack(pack_columns(RawSnapshot(content, {"step": 3}, 0.0), PACER)))

    def test_codes_are_those_of_the_allocators_trace(self) -> None:
        self.assertEqual(ACTIONS, {one.name.lower(): one for one in Action})
        documented = {**{one.name.lower(): one for one in BlockState}, "active_awaiting_free": 2}
        self.assertEqual(STATES, documented)

    def test_blocks_come_back_with_their_stacks(self) -> None:
        blocks = [block(4096, MIB, 3), block(4096 + MIB, 512, 3), block(4608 + MIB, 512, state="inactive")]
        packed = self.packed(torch_snapshot(blocks, events=2))
        (one,) = packed.devices
        self.assertEqual(list(one.segments["address"]), [4096])
        self.assertEqual(list(one.segments["flags"]), [LARGE])
        self.assertEqual(list(one.blocks["size_bytes"]), [MIB, 512, 512])
        self.assertEqual(list(one.blocks["requested_bytes"]), [MIB - 1, 511, 0])  # what is free has a stale figure
        self.assertEqual(list(one.blocks["state"]), [1, 1, 0])
        self.assertEqual(list(one.blocks["stack"]), [0, 0, -1])
        self.assertEqual((list(packed.stacks["depth"]), list(packed.frames["line"])), ([2], [9, 3]))
        self.assertEqual((list(one.events["stack"]), list(one.events["time_us"])), ([0, 0], [7, 7]))
        self.assertEqual((packed.facts["step"], packed.settings), (3, {"expandable_segments": False}))

    def test_devices_are_kept_apart(self) -> None:
        first, second = torch_snapshot([block(4096, MIB)]), torch_snapshot([block(4096, 512)], events=1, device=2)
        content = {**second, "segments": [*second["segments"], *first["segments"]]}
        packed = self.packed(content)
        self.assertEqual([one.device for one in packed.devices], [0, 2])
        self.assertEqual([len(one.events["action"]) for one in packed.devices], [0, 1])

    def test_user_metadata_of_events_is_kept(self) -> None:
        content = torch_snapshot([block(4096, MIB)], events=4)
        for event, word in zip(content["device_traces"][0], ("tidegauge:module:Net.head", "", "x" * 5_000)):
            event["user_metadata"] = word
        packed = self.packed(content)
        texts = [packed.texts[text] if text >= 0 else None for text in packed.devices[0].events["metadata"]]
        self.assertEqual(texts, ["tidegauge:module:Net.head", None, "x" * 1_000, None])

    def test_events_without_user_metadata_have_no_column_of_it(self) -> None:
        packed = self.packed(torch_snapshot([block(4096, MIB)], events=2))
        self.assertEqual(len(packed.devices[0].events["metadata"]), 0)

    def test_an_expandable_segment_and_its_pool(self) -> None:
        content = torch_snapshot([block(4096, MIB)])
        content["segments"][0].update(is_expandable=True, segment_type="small", segment_pool_id=(0, 1), stream=77)
        (one,) = self.packed(content).devices
        self.assertEqual((one.segments["flags"][0], one.pools, one.streams), (EXPANDABLE, ((0, 1),), (77,)))

    def test_an_older_torch_says_less(self) -> None:
        """Before 2.12 events have no pool, and an oom says what was free in the place of an address."""
        content = torch_snapshot([block(4096, MIB)])
        content["device_traces"] = [
            [
                {"action": "alloc", "addr": 4096, "size": 5, "stream": 0, "time_us": 1},
                {"action": "oom", "device_free": 99, "size": 5, "stream": 0, "time_us": 2},
            ]
        ]
        (one,) = self.packed(content).devices
        self.assertEqual((list(one.events["pool"]), list(one.events["address"])), ([], [4096, 99]))
        self.assertEqual(list(one.events["time_us"]), [1, 2])

    def test_an_event_of_a_later_torch_is_counted(self) -> None:
        content = torch_snapshot([block(4096, MIB)], events=1)
        content["device_traces"][0].append({"action": "defragment", "size": 5, "stream": 0})
        packed = self.packed(content)
        self.assertEqual(packed.facts["skipped"], {"defragment": 1})
        self.assertEqual(len(packed.devices[0].events["action"]), 1)

    def test_snapshot_release_frees_torch_objects_in_slices(self) -> None:
        content = torch_snapshot([block(4096 + 512 * n, 512) for n in range(1000)], events=1000)
        rests: list[float] = []
        let_go(RawSnapshot(content, {}, 0.0), Pacer(sleep=rests.append, clock_s=iter(range(100_000)).__next__))
        self.assertEqual((content["device_traces"], content["segments"][0]["blocks"]), ([[]], []))
        self.assertGreaterEqual(len(rests), 10)


class Pacing(unittest.TestCase):
    def test_pacer_rests_when_its_slice_is_used_up(self) -> None:
        now_s, rests = [0.0], list[float]()
        pacer = Pacer(clock_s=lambda: now_s[0], sleep=rests.append)
        pacer.pace()
        self.assertEqual(rests, [])
        now_s[0] += SLICE_S
        pacer.pace()
        pacer.pace()
        self.assertEqual(rests, [REST_S])

    def test_pacer_raises_stopped_error_for_unwanted_work(self) -> None:
        with self.assertRaises(StoppedError):
            Pacer(lambda: True, sleep=lambda _seconds: None).rest()


if __name__ == "__main__":
    unittest.main()
