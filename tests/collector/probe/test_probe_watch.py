# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import os
import tempfile
import unittest

from probe_fakes import FakeBackend, Ring
from tidegauge.core.ids import GlobalRank, JobId, LocalRank, RankIdentity
from tidegauge.core.ring_layout import RingHeader
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.probe.faults import Faults
from tidegauge.probe.run_files.ring_writer import RingWriter
from tidegauge.probe.run_files.run_folder import open_run_folder
from tidegauge.probe.step_counting.steps import StepCounter
from tidegauge.probe.step_counting.watch import LOOK_EVERY_TICKS, MIN_STEP_GAP_NS, TICK_GAP_NS, Watch

SECOND_NS = 1_000_000_000


class FullRing(RingWriter):
    """A ring on a file system that fills up as soon as it is open."""

    def reserve(self, device: int) -> None:
        raise OSError(28, "No space left on device")


class WatchTestCase(unittest.TestCase):
    ring_type = RingWriter

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        folder = open_run_folder(scratch.name, uid=os.geteuid())
        self.addCleanup(folder.close)
        self.ring = self.ring_type(folder, RingHeader(64, 4, 1, 2, 3))
        self.addCleanup(self.ring.abandon)
        self.ring.publish(RankIdentity(JobId("j"), 0, GlobalRank(0), LocalRank(0), 1, "n"))
        self.now_ns = 10 * SECOND_NS
        self.said: list[str] = []
        self.backend = FakeBackend(4)
        self.steps = StepCounter()
        self.watch = Watch(
            self.backend,
            self.ring,
            self.steps,
            Faults(say=self.said.append),
            device_count=4,
            mono_ns=lambda: self.now_ns,
        )

    def kinds(self, device: int = 0) -> list[RecordKind]:
        return [sample.kind for sample in Ring(self.ring.path).samples(device)]

    def pass_time(self, ns: int = SECOND_NS) -> None:
        self.now_ns += ns


class ChoosingDevices(WatchTestCase):
    def test_watch_records_only_devices_this_process_uses(self) -> None:
        self.backend.hold(2, 10, 20)
        self.watch.step()
        self.assertEqual(self.watch.used, [2])
        self.assertEqual([len(self.kinds(device)) for device in range(4)], [0, 0, 2, 0])

    def test_the_first_record_of_a_device_says_that_watching_began(self) -> None:
        self.backend.hold(0, 10, 20)
        self.watch.step()
        first = Ring(self.ring.path).samples()[0]
        self.assertEqual((first.kind, first.event, first.allocated_bytes), (RecordKind.EVENT, EventCode.ATTACHED, 10))

    def test_a_step_reads_each_device_in_use_once_and_no_other(self) -> None:
        self.backend.hold(1, 10, 20)
        self.backend.hold(3, 10, 20)
        self.watch.step()
        self.backend.reads.clear()
        self.pass_time()
        self.watch.step()
        self.assertEqual(self.backend.reads, [1, 3])

    def test_steps_without_any_device_in_use_soon_cost_nothing(self) -> None:
        for _ in range(20):
            self.pass_time()
            self.watch.step()
        self.assertEqual(len(self.backend.reads), 8 * 4)
        self.backend.hold(1, 10, 20)
        self.watch.tick()
        self.assertEqual(self.watch.used, [1])

    def test_a_device_whose_first_reading_failed_is_tried_again(self) -> None:
        self.backend.read_error = RuntimeError("not now")
        with self.assertRaises(RuntimeError):
            self.watch.event(EventCode.OUT_OF_MEMORY, device=0)
        self.backend.read_error = None
        self.watch.event(EventCode.OUT_OF_MEMORY, device=0)
        self.assertEqual(self.watch.used, [0])

    def test_a_device_that_comes_into_use_later_is_found_by_the_ticks(self) -> None:
        self.backend.hold(0, 10, 20)
        self.watch.tick()
        self.backend.hold(1, 10, 20)
        for _ in range(LOOK_EVERY_TICKS):
            self.pass_time()
            self.watch.tick()
        self.assertEqual(self.watch.used, [0, 1])

    def test_a_device_stays_when_its_memory_was_given_back(self) -> None:
        self.backend.hold(0, 10, 20)
        self.watch.step()
        self.backend.hold(0, 0, 0)
        self.pass_time()
        self.watch.step()
        self.assertEqual(Ring(self.ring.path).samples()[-1].reserved_bytes, 0)

    def test_the_cap_is_recorded_where_watching_begins(self) -> None:
        self.watch.limit_fraction = 0.25
        self.backend.hold(0, 10, 20)
        self.watch.step()
        event = Ring(self.ring.path).samples()[1]
        self.assertEqual((event.event, event.event_a), (EventCode.FRACTION_SET, 250_000))


class ChoosingMoments(WatchTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.backend.hold(0, 10, 20)
        self.watch.step()

    def test_steps_in_quick_succession_are_recorded_200_times_a_second(self) -> None:
        for _ in range(1000):
            self.pass_time(1_000_000)
            self.watch.step()
        self.assertEqual(Ring(self.ring.path).samples()[-1].seq, 2 + SECOND_NS // MIN_STEP_GAP_NS)

    def test_a_tick_is_left_out_while_steps_are_recorded(self) -> None:
        self.pass_time(TICK_GAP_NS - 1)
        self.watch.tick()
        self.assertNotIn(RecordKind.TICK, self.kinds())

    def test_ticks_go_on_when_no_step_ends(self) -> None:
        for _ in range(3):
            self.pass_time(SECOND_NS // 2)
            self.watch.tick()
        self.assertEqual(self.kinds()[-3:], [RecordKind.TICK] * 3)

    def test_the_step_count_is_in_the_record(self) -> None:
        self.steps.optimizer_stepped(1, 1, nested=True)
        self.steps.optimizer_stepped(1, 1, nested=False)
        self.pass_time()
        self.watch.step()
        last = Ring(self.ring.path).samples()[-1]
        self.assertEqual((last.step, last.raw_steps), (1, 2))

    def test_the_file_is_touched_so_that_nobody_takes_it_for_a_leftover(self) -> None:
        os.utime(self.ring.path, (1000, 1000))
        for _ in range(120):
            self.watch.tick()
        self.assertGreater(os.stat(self.ring.path).st_mtime, 1000)


class Events(WatchTestCase):
    def test_an_event_on_a_device_not_yet_in_use_brings_it_into_use(self) -> None:
        self.watch.event(EventCode.OUT_OF_MEMORY, (1, 2, 3), device=3)
        events = [sample.event for sample in Ring(self.ring.path).samples(3)]
        self.assertEqual(events, [EventCode.ATTACHED, EventCode.OUT_OF_MEMORY])

    def test_a_note_repeats_the_last_numbers_and_does_not_ask_the_allocator(self) -> None:
        self.backend.hold(0, 10, 20)
        self.watch.step()
        self.backend.reads.clear()
        self.backend.hold(0, 11, 21)
        self.watch.note(EventCode.DETACHED)
        self.assertEqual(self.backend.reads, [])
        last = Ring(self.ring.path).samples()[-1]
        self.assertEqual((last.event, last.allocated_bytes), (EventCode.DETACHED, 10))


class FullFileSystem(WatchTestCase):
    ring_type = FullRing

    def test_a_device_without_room_is_not_watched_and_that_is_said_once(self) -> None:
        self.backend.hold(0, 10, 20)
        for _ in range(3):
            self.pass_time()
            self.watch.step()
            self.watch.tick()
        self.assertEqual(self.watch.used, [])
        self.assertEqual(len(self.said), 1)
        self.assertIn("no space for records of device 0", self.said[0])


del WatchTestCase  # the base is not a test of its own


if __name__ == "__main__":
    unittest.main()
