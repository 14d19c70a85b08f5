# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import os
import pickle
import resource
import sys
import tempfile
import unittest
from collections.abc import Mapping
from typing import Any, Optional

from probe_fakes import MIB, FakeBackend, FakeOutOfMemoryError, facts_of_this_process, fake_torch
from tidegauge.core.ids import ProcessId
from tidegauge.core.oom.of_rank import last_oom, oom_words
from tidegauge.core.samples import EventCode
from tidegauge.probe.faults import Faults
from tidegauge.probe.oom_observer import MAX_LINES
from tidegauge.probe.run_files.oom_snapshot import (
    FACTS_KEY,
    MAX_BLOCKS,
    MAX_EVENTS,
    REST,
    OomSnapshots,
    RefusedAllocation,
)
from tidegauge.probe.run_files.run_folder import LEFTOVER_AGE_S, open_run_folder
from tidegauge.probe.runtime.backend import Cuda
from tidegauge.probe.session.probe import Probe

REFUSAL = RefusedAllocation(device=0, wanted_bytes=64 * MIB, limit_bytes=8192 * MIB, free_bytes=10 * MIB)
PROCESS = ProcessId(12, 34)


def snapshot(blocks: int = 2) -> dict[str, Any]:
    """As torch gives it: on device 0 live blocks of 32 MiB, one that waits for a stream, a free one of 5 MiB."""
    frames = [
        {"name": "linear", "filename": "/x/site-packages/torch/nn/functional.py", "line": 9},
        {"name": "forward", "filename": "/home/ada/train.py", "line": 41},
    ]
    live = [{"size": 32 * MIB, "requested_size": 1, "state": "active_allocated", "frames": frames}] * blocks
    others = [
        {"size": 7 * MIB, "requested_size": 1, "state": "active_pending_free", "frames": []},
        {"size": 5 * MIB, "requested_size": 1, "state": "inactive", "frames": []},
    ]
    segment = {
        "device": 0, "address": 4096, "total_size": 512 * MIB, "stream": 0, "segment_type": "large",
        "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [*live, *others],
    }  # fmt: skip
    return {"segments": [segment, {**segment, "device": 1}], "device_traces": [], "allocator_settings": {}}


class OomTestCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        self.backend = FakeBackend(2)
        self.backend.snapshot_taken = snapshot()
        self.folder = os.path.join(self.run_dir, str(os.geteuid()))

    def files(self) -> list[str]:
        return sorted(name for name in os.listdir(self.folder) if name.endswith(".oom.pickle"))

    def written(self) -> Mapping[str, Any]:
        (name,) = self.files()
        with open(os.path.join(self.folder, name), "rb") as file:
            content: Mapping[str, Any] = pickle.load(file)
        return content


class TakingSnapshots(OomTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.now_s = 100.0
        folder = open_run_folder(self.run_dir, uid=os.geteuid())
        self.addCleanup(folder.close)
        self.snapshots = OomSnapshots(self.backend, folder, PROCESS, clock_s=lambda: self.now_s)

    def events(self, allocated: int, freed: int = 0, current: int = 5) -> None:
        counts = {"allocated": allocated, "freed": freed, "current": current, "peak": current}
        self.backend.stats[0]["allocation"] = {"all": counts}

    def test_the_file_is_torchs_own_and_says_what_was_refused(self) -> None:
        held = self.snapshots.take(REFUSAL, [0], {"rank": 3})
        written = self.written()
        self.assertEqual(self.files(), ["12-34.oom.pickle"])
        self.assertEqual(os.stat(os.path.join(self.folder, "12-34.oom.pickle")).st_mode & 0o777, 0o600)
        self.assertEqual({**written, FACTS_KEY: None}, {**snapshot(), FACTS_KEY: None})
        facts = written[FACTS_KEY]
        self.assertEqual((facts["device"], facts["wanted_bytes"], facts["rank"]), (0, 64 * MIB, 3))
        assert held is not None
        self.assertEqual((held.live_bytes, held.pending_bytes, held.free_bytes), (64 * MIB, 7 * MIB, 5 * MIB))
        line = held.owners[0].line
        assert line is not None
        self.assertEqual((line.filename, line.line), ("/home/ada/train.py", 41))

    def test_oom_snapshot_sums_up_only_the_device_that_ran_out(self) -> None:
        held = self.snapshots.take(REFUSAL._replace(device=1), [0, 1], {})
        assert held is not None
        self.assertEqual(held.live_bytes, 64 * MIB)

    def test_the_newest_is_kept(self) -> None:
        self.snapshots.take(REFUSAL, [0], {})
        self.now_s += 1.0
        self.snapshots.take(REFUSAL._replace(wanted_bytes=20 * MIB), [0], {})
        self.assertEqual(self.written()[FACTS_KEY]["wanted_bytes"], 20 * MIB)

    def test_a_job_that_tries_again_and_again_is_not_held_up(self) -> None:
        took_s = 0.5

        def slow(*, history: bool) -> Optional[Mapping[str, Any]]:
            self.now_s += took_s
            return snapshot()

        self.backend.snapshot = slow  # type: ignore[method-assign]
        self.assertIsNotNone(self.snapshots.take(REFUSAL, [0], {}))
        self.now_s += REST * took_s - 0.1
        self.assertIsNone(self.snapshots.take(REFUSAL, [0], {}))
        self.now_s += 0.2
        self.assertIsNotNone(self.snapshots.take(REFUSAL, [0], {}))

    def test_a_long_history_of_the_jobs_own_is_left_out(self) -> None:
        self.events(allocated=MAX_EVENTS // 2, freed=MAX_EVENTS // 4)
        self.snapshots.take(REFUSAL, [0], {})
        self.now_s += 1.0
        self.events(allocated=MAX_EVENTS // 2, freed=MAX_EVENTS // 4 + 1)
        self.snapshots.take(REFUSAL, [0], {})
        self.assertEqual(self.backend.snapshots_with_history, [True, False])

    def test_so_many_blocks_that_it_would_take_long_are_left_alone(self) -> None:
        self.events(allocated=10, current=MAX_BLOCKS + 1)
        self.assertIsNone(self.snapshots.take(REFUSAL, [0], {}))
        self.assertEqual((self.files(), self.backend.snapshots_with_history), ([], []))

    def test_a_torch_that_cannot_leaves_no_file(self) -> None:
        self.backend.snapshot_taken = None
        self.assertIsNone(self.snapshots.take(REFUSAL, [0], {}))
        self.assertEqual(self.files(), [])

    def test_oom_snapshot_over_the_size_limit_removes_the_older_file(self) -> None:
        self.snapshots.take(REFUSAL, [0], {})
        self.now_s += 1.0
        self.backend.snapshot_taken = {**snapshot(), "allocator_settings": "x" * (17 * MIB)}
        self.assertIsNotNone(self.snapshots.take(REFUSAL, [0], {}))
        self.assertEqual(self.files(), [])

    def test_a_limit_on_the_size_of_files_is_kept_to(self) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        self.assertIsNotNone(self.snapshots.take(REFUSAL, [0], {}))
        self.assertEqual(self.files(), [])

    def test_oom_summary_is_returned_if_no_file_can_be_written(self) -> None:
        os.mkdir(os.path.join(self.folder, "12-34.oom.pickle"))  # a file of that name cannot be made
        self.assertIsNotNone(self.snapshots.take(REFUSAL, [0], {}))

    def test_oom_snapshot_file_is_removed_with_other_leftovers(self) -> None:
        self.snapshots.take(REFUSAL, [0], {})
        path = os.path.join(self.folder, self.files()[0])
        os.utime(path, (1e9, 1e9))
        folder = open_run_folder(self.run_dir, uid=os.geteuid())
        self.addCleanup(folder.close)
        folder.remove_leftovers(now_s=lambda: 1e9 + LEFTOVER_AGE_S + 1, alive=lambda _: False)
        self.assertEqual(self.files(), [])


class TheObserver(OomTestCase):
    def probe(self, level: str = "stats", **environ: str) -> Probe:
        self.said: list[str] = []
        probe = Probe(
            level,
            self.backend,
            environ={"TIDEGAUGE_RUN_DIR": self.run_dir, **environ},
            faults=Faults(say=self.said.append),
            process_facts=facts_of_this_process,
            with_helper=False,
        )
        self.addCleanup(probe.close)
        probe.arm()
        self.backend.hold(0, 64 * MIB, 512 * MIB)
        self.backend.initialise()
        return probe

    def run_out(self) -> None:
        for observer in self.backend.observers:
            observer(0, 64 * MIB, 8192 * MIB, 10 * MIB)

    def told(self, probe: Probe, error: Optional[BaseException]) -> str:
        """What the last words print, if ``error`` ends the program."""
        for name in ("last_exc", "last_value"):  # the former from Python 3.12 on
            self.addCleanup(setattr, sys, name, getattr(sys, name, None))
            setattr(sys, name, error)
        kept = os.dup(2)
        with tempfile.TemporaryFile() as printed:
            os.dup2(printed.fileno(), 2)
            try:
                probe.last_words()
            finally:
                os.dup2(kept, 2)
                os.close(kept)
            printed.seek(0)
            return printed.read().decode()

    def test_a_snapshot_is_taken_at_the_error(self) -> None:
        self.probe()
        self.run_out()
        facts = self.written()[FACTS_KEY]
        self.assertEqual((facts["torch_version"], facts["total_bytes"], facts["cap_bytes"]), ("2.13.0", None, None))

    def test_a_cap_that_is_known_is_in_the_file(self) -> None:
        self.probe(TIDEGAUGE_MEMORY_FRACTION="0.5")
        self.run_out()
        facts = self.written()[FACTS_KEY]
        self.assertEqual((facts["total_bytes"], facts["cap_bytes"]), (16384 * MIB, 8192 * MIB))

    def test_whatever_torch_raises_does_not_replace_the_error(self) -> None:
        def broken(*, history: bool) -> Optional[Mapping[str, Any]]:
            raise RuntimeError("no")

        probe = self.probe()
        self.backend.snapshot = broken  # type: ignore[method-assign]
        self.run_out()
        self.assertEqual(probe.faults.count, 1)
        self.assertIn("the out-of-memory observer", self.said[0])

    def test_off_takes_nothing_and_says_nothing(self) -> None:
        probe = self.probe(TIDEGAUGE_EXPLAIN_OOM="off")
        self.run_out()
        self.assertEqual(self.files(), [])
        self.assertEqual(self.told(probe, FakeOutOfMemoryError()), "")

    def test_dormant_takes_nothing(self) -> None:
        self.probe("dormant")
        self.run_out()
        self.assertEqual(self.backend.snapshots_with_history, [])

    def test_the_error_that_ends_the_program_is_explained(self) -> None:
        probe = self.probe()
        self.run_out()
        lines = self.told(probe, FakeOutOfMemoryError()).splitlines()
        self.assertTrue(
            lines[0].startswith("tidegauge: rank 0 ran out of memory at step 0: an allocation of 64.0 MiB failed"),
            lines,
        )
        self.assertIn("(100 %) in 2 blocks of 32.0 MiB: /home/ada/train.py:41 in forward", lines[1])
        self.assertIn("largest usable by the request: 5.0 MiB", lines[2])
        self.assertLessEqual(len(lines), MAX_LINES)

    MESSAGE = (
        "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 10.00 MiB is "
        "free. Process 4242 has 7.25 GiB memory in use. Process 7 has 200.00 MiB memory in use. {own}Of the allocated "
        "memory 64.00 MiB is allocated by PyTorch, and 448.00 MiB is reserved by PyTorch but unallocated."
    )
    OWN = "Including non-PyTorch memory, this process has 540.00 MiB memory in use. "

    def test_a_process_that_pytorch_names_is_named(self) -> None:
        probe = self.probe()
        self.run_out()
        told = self.told(probe, FakeOutOfMemoryError(self.MESSAGE.format(own=self.OWN)))
        self.assertIn("other ranks) held 7.4 GiB of the GPU, the largest is process 4242 with 7.2 GiB", told)

    def test_where_pytorch_does_not_know_its_own_process_nobody_is_named(self) -> None:
        probe = self.probe()
        self.run_out()
        self.assertNotIn("4242", self.told(probe, FakeOutOfMemoryError(self.MESSAGE.format(own=""))))

    def test_a_keeper_learns_who_was_named_from_the_ring(self) -> None:
        own = facts_of_this_process().process.pid
        with open("/proc/self/stat") as file:
            start_ticks = file.read().rpartition(")")[2].split()[19]
        probe = self.probe(TIDEGAUGE_KEEPER=f"{own}-{start_ticks}")
        self.run_out()
        self.assertEqual(self.told(probe, FakeOutOfMemoryError(self.MESSAGE.format(own=self.OWN))), "")
        assert probe._run_files is not None
        assert probe._run_files.ring is not None
        assert probe._run_files.identity is not None
        samples = probe._run_files.ring.samples(0)
        oom = last_oom(samples)
        assert oom is not None
        (line,) = oom_words(probe._run_files.identity, samples, oom)
        self.assertIn("the largest is process 4242 with 7.2 GiB", line)

    def test_without_a_stderr_nothing_is_written_to_whatever_has_its_number(self) -> None:
        probe = self.probe()
        self.run_out()
        self.addCleanup(setattr, sys, "__stderr__", sys.__stderr__)
        sys.__stderr__ = None  # type: ignore[misc]
        self.assertEqual(self.told(probe, FakeOutOfMemoryError()), "")

    def test_an_error_that_came_from_it_is_explained_too(self) -> None:
        probe = self.probe()
        self.run_out()
        error = ValueError("in the loader")
        error.__cause__ = FakeOutOfMemoryError()
        self.assertIn("ran out of memory", self.told(probe, error))

    def test_an_error_that_was_survived_is_not_spoken_of(self) -> None:
        probe = self.probe()
        self.run_out()
        self.assertEqual(self.told(probe, None), "")
        self.assertEqual(self.told(probe, ValueError("something else")), "")

    def test_an_error_that_the_observer_did_not_see_is_not_spoken_of(self) -> None:
        self.assertEqual(self.told(self.probe(), FakeOutOfMemoryError()), "")

    def test_a_living_keeper_has_the_word(self) -> None:
        own = facts_of_this_process().process.pid
        with open("/proc/self/stat") as file:
            start_ticks = file.read().rpartition(")")[2].split()[19]
        probe = self.probe(TIDEGAUGE_KEEPER=f"{own}-{start_ticks}")
        self.run_out()
        self.assertEqual(self.told(probe, FakeOutOfMemoryError()), "")

    def test_the_name_of_a_keeper_that_is_gone_silences_nobody(self) -> None:
        probe = self.probe(TIDEGAUGE_KEEPER="1-1")
        self.run_out()
        self.assertIn("ran out of memory", self.told(probe, FakeOutOfMemoryError()))

    def test_hostile_names_in_a_stack_reach_no_terminal(self) -> None:
        hostile = snapshot()
        hostile["segments"][0]["blocks"][0]["frames"][1]["filename"] = "/home/ada/\x1b]0;owned\x07.py"
        self.backend.snapshot_taken = hostile
        probe = self.probe()
        self.run_out()
        self.assertNotIn("\x1b", self.told(probe, FakeOutOfMemoryError()))

    def test_the_ring_gives_back_what_it_holds(self) -> None:
        probe = self.probe()
        self.run_out()
        assert probe._run_files is not None
        assert probe._run_files.ring is not None
        events = [sample.event for sample in probe._run_files.ring.samples(0)]
        self.assertEqual(events, [EventCode.ATTACHED, EventCode.OUT_OF_MEMORY])

    def test_oom_event_is_followed_by_free_private_pool_bytes(self) -> None:
        pooled = snapshot()
        pooled["segments"].append({**pooled["segments"][0], "segment_pool_id": (1, 0)})
        self.backend.snapshot_taken = pooled
        probe = self.probe()
        self.run_out()
        assert probe._run_files is not None
        assert probe._run_files.ring is not None
        noted = probe._run_files.ring.samples(0)[-1]
        self.assertEqual((noted.event, noted.event_a), (EventCode.POOLS_AT_OOM, 5 * MIB))


class TorchsOwnSnapshot(unittest.TestCase):
    """Every signature that ``torch._C._cuda_memorySnapshot`` had."""

    def backend(self, version: str, *, recording: bool, calls: list[tuple[object, ...]]) -> Cuda:
        def take(*arguments: object) -> dict[str, Any]:
            calls.append(arguments)
            return {"segments": []}

        c = fake_torch(_cuda_memorySnapshot=take, _cuda_isHistoryEnabled=lambda: recording, _cuda_memoryStats=None)
        return Cuda(fake_torch(__version__=version, _C=c, cuda=fake_torch(memory_stats_as_nested_dict=None)))

    def test_the_history_is_left_out_where_torch_can(self) -> None:
        calls: list[tuple[object, ...]] = []
        backend = self.backend("2.11.0", recording=True, calls=calls)
        self.assertEqual(backend.snapshot(history=False), {"segments": []})
        self.assertEqual(backend.snapshot(history=True), {"segments": []})
        self.assertEqual(calls, [((0, 0, False),), ((0, 0, True),)])

    def test_before_2_11_a_recording_job_is_left_alone(self) -> None:
        calls: list[tuple[object, ...]] = []
        self.assertIsNone(self.backend("2.9.1", recording=True, calls=calls).snapshot(history=False))
        self.assertEqual(calls, [])
        self.assertIsNotNone(self.backend("2.9.1", recording=True, calls=calls).snapshot(history=True))
        self.assertIsNotNone(self.backend("2.9.1", recording=False, calls=calls).snapshot(history=False))
        self.assertIsNotNone(self.backend("2.4.0", recording=False, calls=calls).snapshot(history=False))
        self.assertEqual(calls, [(None,), (None,), ()])

    def test_torchs_error_is_known_under_both_names(self) -> None:
        both = fake_torch(__version__="2.13.0", OutOfMemoryError=FakeOutOfMemoryError, _C=fake_torch())
        both.cuda = fake_torch(memory_stats_as_nested_dict=None)
        older = fake_torch(__version__="2.4.0", _C=fake_torch())
        older.cuda = fake_torch(memory_stats_as_nested_dict=None, OutOfMemoryError=FakeOutOfMemoryError)
        for torch in (both, older):
            self.assertTrue(Cuda(torch).is_out_of_memory(FakeOutOfMemoryError()))
            self.assertFalse(Cuda(torch).is_out_of_memory(RuntimeError()))


if __name__ == "__main__":
    unittest.main()
