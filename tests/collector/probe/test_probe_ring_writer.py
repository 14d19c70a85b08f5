# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
import unittest

from probe_fakes import Ring, nested_stats
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.ring_layout import DEFAULT_CAPACITY, HEADER_BYTES, LayoutError, RingHeader, decode_header
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.probe.run_files.ring_writer import MIN_CAPACITY, RingWriter, fitting_capacity, open_ring
from tidegauge.probe.run_files.run_folder import NoRoomError, RunFolder, open_run_folder
from tidegauge.probe.runtime.readings import counts_of
from waiting import PATIENCE_S

IDENTITY = RankIdentity(
    JobId("j"), 0, GlobalRank(1), LocalRank(1), 2, "node1", device_uuids=(DeviceUuid("GPU-a"), DeviceUuid("GPU-b"))
)
COUNTS = counts_of(nested_stats(10, 20))


class RingTestCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        self.folder: RunFolder = open_run_folder(self.run_dir, uid=os.geteuid())
        self.addCleanup(self.folder.close)

    def ring(self, *, capacity: int = 8, devices: int = 2, pid: int = 41) -> RingWriter:
        ring = RingWriter(self.folder, RingHeader(capacity, devices, pid, 77, 123), mono_ns=itertools.count(1).__next__)
        self.addCleanup(ring.abandon)
        return ring


class WritingRings(RingTestCase):
    def test_ring_writer_output_reads_back_unchanged(self) -> None:
        ring = self.ring()
        ring.publish(IDENTITY)
        ring.reserve(1)
        ring.append(1, COUNTS, kind=RecordKind.STEP, steps=5, raw_steps=6)
        ring.append(1, COUNTS, kind=RecordKind.EVENT, event=EventCode.OUT_OF_MEMORY, facts=(7, 8, 9))
        read = Ring(ring.path)
        self.assertEqual(read.identity, IDENTITY)
        self.assertEqual(read.header, RingHeader(8, 2, 41, 77, 123))
        step, event = read.samples(1)
        self.assertEqual((step.seq, step.kind, step.device, step.step, step.raw_steps), (1, RecordKind.STEP, 1, 5, 6))
        self.assertEqual((step.allocated_bytes, step.reserved_bytes, step.mono_ns), (10, 20, 1))
        self.assertEqual((event.event, event.event_a, event.event_b, event.event_c), (EventCode.OUT_OF_MEMORY, 7, 8, 9))
        self.assertEqual(read.samples(0), [])

    def test_ring_writer_hides_the_ring_until_its_identity_is_complete(self) -> None:
        ring = self.ring()
        with open(ring.path, "rb") as file, self.assertRaises(LayoutError) as caught:
            decode_header(file.read(HEADER_BYTES), file_bytes=os.path.getsize(ring.path))
        self.assertEqual(caught.exception.reason, "magic")

    def test_the_identity_can_change(self) -> None:
        ring = self.ring()
        ring.publish(IDENTITY)
        ring.publish(IDENTITY._replace(rank=GlobalRank(0)))
        identity = Ring(ring.path).identity
        assert identity is not None
        self.assertEqual(identity.rank, 0)

    def test_a_full_ring_keeps_the_newest(self) -> None:
        ring = self.ring(capacity=8)
        ring.publish(IDENTITY)
        ring.reserve(0)
        for _ in range(20):
            ring.append(0, COUNTS, kind=RecordKind.TICK)
        self.assertEqual([sample.seq for sample in Ring(ring.path).samples()], list(range(13, 21)))

    def test_each_device_has_its_own_sequence(self) -> None:
        ring = self.ring()
        ring.publish(IDENTITY)
        for device in (0, 1, 1):
            ring.reserve(device)
            ring.append(device, COUNTS, kind=RecordKind.TICK)
        read = Ring(ring.path)
        self.assertEqual([sample.seq for sample in read.samples(0)], [1])
        self.assertEqual([sample.seq for sample in read.samples(1)], [1, 2])

    def test_threads_never_share_a_sequence_number_and_time_never_runs_backwards(self) -> None:
        ring = self.ring(capacity=4096, devices=1)
        ring.publish(IDENTITY)
        ring.reserve(0)

        def write() -> None:
            for _ in range(500):
                ring.append(0, COUNTS, kind=RecordKind.TICK)

        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)  # a switch wherever there can be one
        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        samples = Ring(ring.path).samples()
        self.assertEqual([sample.seq for sample in samples], list(range(1, 2001)))
        times = [sample.mono_ns for sample in samples]
        self.assertEqual(times, sorted(times))

    def test_ring_writer_creates_files_readable_by_the_user_only(self) -> None:
        self.assertEqual(os.stat(self.ring().path).st_mode & 0o777, 0o600)

    def test_pages_are_taken_for_devices_in_use_only(self) -> None:
        ring = self.ring(capacity=4096, devices=8)
        before = os.stat(ring.path).st_blocks
        ring.reserve(3)
        taken = (os.stat(ring.path).st_blocks - before) * 512
        self.assertGreaterEqual(taken, 4096 * 256)
        self.assertLess(taken, 2 * 4096 * 256)

    def test_a_program_that_replaced_itself_by_execve_gets_a_new_file(self) -> None:
        first = self.ring()
        first.publish(IDENTITY)
        inode = os.stat(first.path).st_ino
        second = self.ring()
        self.assertEqual(first.path, second.path)
        self.assertNotEqual(os.stat(second.path).st_ino, inode)

    def test_abandoning_leaves_the_file_as_it_is(self) -> None:
        ring = RingWriter(self.folder, RingHeader(8, 1, 42, 77, 123))
        ring.publish(IDENTITY)
        ring.abandon()
        self.assertEqual(Ring(ring.path).identity, IDENTITY)

    def test_a_file_size_limit_is_respected_without_the_signal_that_ends_a_job(self) -> None:
        code = (
            "import os, resource, signal, sys\n"
            "from tidegauge.core.ring_layout import RingHeader\n"
            "from tidegauge.probe.run_files.ring_writer import RingWriter\n"
            "from tidegauge.probe.run_files.run_folder import open_run_folder\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, a job may not\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
            "folder = open_run_folder(sys.argv[1], uid=os.geteuid())\n"
            "try: RingWriter(folder, RingHeader(256, 1, 41, 77, 123))\n"
            "except OSError as error: print(error.strerror, os.listdir(folder.path))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, self.run_dir], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0)
        self.assertIn("RLIMIT_FSIZE", done.stdout)
        self.assertIn("[]", done.stdout)


class FittingTheFileSystem(unittest.TestCase):
    def test_there_is_room_for_the_usual_ring_in_a_containers_shm(self) -> None:
        self.assertEqual(fitting_capacity(64 << 20), DEFAULT_CAPACITY)

    def test_little_room_makes_a_shorter_ring(self) -> None:
        self.assertEqual(fitting_capacity(16 << 20), DEFAULT_CAPACITY // 4)
        self.assertEqual(fitting_capacity(MIN_CAPACITY * 256 * 64), MIN_CAPACITY)

    def test_no_room_is_an_error(self) -> None:
        with self.assertRaises(NoRoomError):
            fitting_capacity(1 << 20)


class ChoosingAPlace(RingTestCase):
    def test_the_ring_lies_below_the_users_folder(self) -> None:
        folder, ring, refused = open_ring(
            {"TIDEGAUGE_RUN_DIR": self.run_dir}, ProcessId(os.getpid(), 5), device_count=1
        )
        assert folder is not None
        assert ring is not None
        self.addCleanup(folder.close)
        self.addCleanup(ring.abandon)
        self.assertEqual(ring.path, os.path.join(self.run_dir, str(os.geteuid()), f"{os.getpid()}-5.ring"))
        self.assertEqual(refused, [])

    def test_a_place_that_cannot_be_used_is_named_with_the_reason(self) -> None:
        file = os.path.join(self.run_dir, "file")
        with open(file, "w"):
            pass
        folder, ring, refused = open_ring({"TIDEGAUGE_RUN_DIR": file}, ProcessId(1, 2), device_count=1)
        self.assertIsNone(folder)
        self.assertIsNone(ring)
        self.assertEqual(len(refused), 1)
        self.assertIn(file, refused[0])


if __name__ == "__main__":
    unittest.main()
