# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009, PT027
from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import unittest
from typing import Any

from probe_fakes import MIB, FakeBackend, FakeOptimizer, Ring, facts_of_this_process, rings_below
from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.probe.faults import MAX_FAULTS, Faults
from tidegauge.probe.session.commands import Commands
from tidegauge.probe.session.probe import MAX_TICKS_ALONE, Probe
from waiting import PATIENCE_S, eventually


class GuestTestCase(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.run_dir = scratch.name
        self.said: list[str] = []
        self.backend = FakeBackend(2)
        self.threads_before = set(threading.enumerate())

    def helpers(self) -> list[threading.Thread]:
        """The helper threads of this test; on a busy machine one of a test before may still be about to end."""
        found = set(threading.enumerate()) - self.threads_before
        return [thread for thread in found if thread.name == "tidegauge"]

    def probe(self, level: str = "stats", *, with_helper: bool = False, **environ: str) -> Probe:
        probe = Probe(
            level,
            self.backend,
            environ={"TIDEGAUGE_RUN_DIR": self.run_dir, **environ},
            faults=Faults(say=self.said.append),
            process_facts=facts_of_this_process,
            with_helper=with_helper,
        )
        self.addCleanup(probe.close)
        probe.arm()
        return probe

    def run_as(self, path: str) -> None:
        """Have ``__main__`` be this file during the test, and no module."""
        main = vars(sys.modules["__main__"])
        before: dict[str, Any] = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.update(__file__=path, __spec__=None)
        self.addCleanup(lambda: main.update(before))
        if "__file__" not in before:
            self.addCleanup(main.pop, "__file__")

    def step(self) -> None:
        """One training step of the one model."""
        FakeOptimizer(self.backend, [self.run_dir]).step()

    def ring(self) -> Ring:
        (path,) = rings_below(self.run_dir)
        return Ring(path)

    def wait_for_events(self, expected: list[EventCode]) -> None:
        """Begun by a command, watching may begin with a device in the helper's tick, a moment after our step."""
        eventually(lambda: len(self.events()) >= len(expected))
        self.assertEqual(self.events(), expected)

    def events(self, device: int = 0) -> list[EventCode]:
        return [sample.event for sample in self.ring().samples(device) if sample.kind is RecordKind.EVENT]


class Beginning(GuestTestCase):
    def test_what_is_run_is_read_by_the_helper_alone(self) -> None:
        self.run_as("/no/such/train.py")
        probe = self.probe()
        self.backend.initialise()
        before = self.ring().identity
        probe.tick()
        after = self.ring().identity
        assert before is not None
        assert after is not None
        self.assertEqual((before.script, after.script, after.script_sha256), (None, "/no/such/train.py", None))

    def test_session_starts_nothing_before_the_device_is_initialised(self) -> None:
        self.probe(with_helper=True)
        self.assertEqual(os.listdir(self.run_dir), [])
        self.assertEqual(self.helpers(), [])

    def test_the_ring_names_the_rank_as_soon_as_the_device_is(self) -> None:
        self.probe(RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
        self.backend.initialise()
        identity = self.ring().identity
        assert identity is not None
        self.assertEqual((identity.rank, identity.world_size, identity.profile), (1, 2, "stats"))
        self.assertEqual(identity.device_uuids, ("GPU-fake-0", "GPU-fake-1"))
        self.assertEqual(identity.torch_version, "2.13.0")

    def test_a_device_that_is_up_already_is_watched_at_once(self) -> None:
        self.backend.initialise()
        self.probe()
        self.assertEqual(len(rings_below(self.run_dir)), 1)

    def test_the_first_step_begins_watching_if_the_initialisation_was_missed(self) -> None:
        self.probe()
        self.backend._queued.clear()
        self.backend.initialise()
        self.backend.hold(0, MIB, 2 * MIB)
        self.step()
        self.assertEqual(self.events(), [EventCode.ATTACHED])

    def test_the_requested_level_is_recorded(self) -> None:
        for level in ("auto", "trace"):
            with self.subTest(level):
                self.setUp()
                self.probe(level)
                self.backend.initialise()
                identity = self.ring().identity
                assert identity is not None
                self.assertEqual(identity.profile, level)

    def test_a_job_without_steps_is_told_once_how_to_make_them(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        for _ in range(MAX_TICKS_ALONE - 1):
            probe.tick()
        self.assertEqual(self.said, [])
        for _ in range(MAX_TICKS_ALONE):
            probe.tick()
        (line,) = self.said
        self.assertIn("call tidegauge.step() once a step", line)

    def test_a_job_with_steps_is_not_told_how_to_make_them(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        self.step()
        for _ in range(MAX_TICKS_ALONE):
            probe.tick()
        self.assertEqual(self.said, [])

    def test_no_usable_folder_is_said_once_and_nothing_else_happens(self) -> None:
        self.probe(TIDEGAUGE_RUN_DIR="/proc/nowhere")
        self.backend.initialise()
        optimizer = FakeOptimizer(self.backend)
        for _ in range(3):
            optimizer.step()
        self.assertEqual(len(self.said), 1)
        self.assertIn("/proc/nowhere", self.said[0])

    def test_an_allocator_without_counters_is_said_once_and_gives_no_records(self) -> None:
        self.backend.blind = "its allocator is cudaMallocAsync, which keeps no counters"
        self.probe()
        self.backend.initialise()
        optimizer = FakeOptimizer(self.backend)
        for _ in range(3):
            optimizer.step()
        self.assertEqual(self.ring().samples(), [])
        self.assertEqual(len(self.said), 1)
        self.assertIn("cudaMallocAsync", self.said[0])

    def test_a_job_that_trains_without_cuda_is_told_once_by_its_first_rank(self) -> None:
        for local_rank, lines in (("0", 1), ("1", 0)):
            with self.subTest(local_rank=local_rank):
                self.setUp()
                self.probe(LOCAL_RANK=local_rank)
                optimizer = FakeOptimizer(self.backend)
                for _ in range(3):
                    optimizer.step()
                self.assertEqual(len(self.said), lines)

    def test_a_rank_without_launcher_is_named_when_its_process_group_is_there(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        probe.tick()
        self.backend.group = (1, 2)
        probe.tick()
        identity = self.ring().identity
        assert identity is not None
        self.assertEqual((identity.rank, identity.world_size), (1, 2))


class Recording(GuestTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.backend.hold(0, MIB, 2 * MIB)

    def test_steps_make_records(self) -> None:
        self.probe()
        self.backend.initialise()
        self.step()
        last = self.ring().samples()[-1]
        self.assertEqual((last.kind, last.step, last.allocated_bytes), (RecordKind.STEP, 1, MIB))

    def test_super_step_is_one_step(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        optimizer = FakeOptimizer(self.backend)
        for _ in range(3):
            optimizer.step(inner=lambda: optimizer.step())
        self.assertEqual((probe.steps.steps, probe.steps.raw_steps), (3, 6))

    def test_a_step_that_raises_is_not_counted_and_does_not_spoil_the_count(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        optimizer = FakeOptimizer(self.backend)

        def fail() -> None:
            raise MemoryError

        optimizer.step()
        with self.assertRaises(MemoryError):
            optimizer.step(inner=fail)
        optimizer.step()
        self.assertEqual((probe.steps.steps, probe.steps.raw_steps), (2, 2))

    def test_explicit_steps_are_recorded(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        probe.explicit_step()
        self.assertEqual(self.ring().samples()[-1].kind, RecordKind.STEP)

    def test_out_of_memory_is_recorded_with_its_numbers(self) -> None:
        self.probe()
        self.backend.initialise()
        self.backend.observers[0](1, 20 * MIB, 80 * MIB, 3 * MIB)
        last = self.ring().samples(1)[-1]
        self.assertEqual(last.event, EventCode.OUT_OF_MEMORY)
        self.assertEqual((last.event_a, last.event_b, last.event_c), (20 * MIB, 3 * MIB, 80 * MIB))

    def test_the_end_is_recorded_and_the_ring_stays(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        self.step()
        probe.close()
        self.assertEqual(self.events()[-1], EventCode.DETACHED)

    def test_at_the_end_of_the_process_its_peaks_are_read_once_more(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        self.step()
        self.backend.hold(0, 5 * MIB, 90 * MIB)
        probe.end()
        reading, last = self.ring().samples(0)[-2:]
        self.assertEqual((reading.kind, reading.reserved_bytes), (RecordKind.TICK, 90 * MIB))
        self.assertEqual((last.event, last.reserved_bytes), (EventCode.DETACHED, 90 * MIB))

    def test_a_last_reading_that_fails_keeps_nobody_from_ending(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        self.step()
        self.backend.read_error = RuntimeError("the driver is gone")
        probe.end()
        self.assertEqual((self.events()[-1], probe.faults.count), (EventCode.DETACHED, 1))

    def test_after_the_end_nothing_is_recorded(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        probe.close()
        self.backend.reads.clear()
        self.step()
        self.backend.observers[0](0, 1, 2, 3)
        self.assertEqual(self.backend.reads, [])


class Capping(GuestTestCase):
    def test_every_visible_device_is_capped_before_anything_is_allocated(self) -> None:
        self.probe(TIDEGAUGE_MEMORY_FRACTION="0.5")
        self.backend.initialise()
        self.assertEqual(self.backend.fractions, [(0, 0.5), (1, 0.5)])
        identity = self.ring().identity
        assert identity is not None
        self.assertEqual(identity.limit_fraction, 0.5)

    def test_a_dormant_probe_caps_too(self) -> None:
        self.probe("dormant", TIDEGAUGE_MEMORY_FRACTION="1.0")
        self.backend.initialise()
        self.assertEqual(self.backend.fractions, [(0, 1.0), (1, 1.0)])

    def test_a_bad_value_is_one_clear_line_and_no_cap(self) -> None:
        for value in ("0", "2", "abc", "-0.5", "nan", "inf", "1e-400"):
            with self.subTest(value):
                self.setUp()
                self.probe(TIDEGAUGE_MEMORY_FRACTION=value)
                self.backend.initialise()
                self.assertEqual(self.backend.fractions, [])
                self.assertEqual(len(self.said), 1)
                self.assertIn(f"TIDEGAUGE_MEMORY_FRACTION={value!r}", self.said[0])

    def test_a_job_that_shares_a_gpu_and_states_nothing_gets_what_its_earlier_runs_needed(self) -> None:
        self.probe("dormant", TIDEGAUGE_GPU_SHARE="0.25", TIDEGAUGE_SHARED_GPU_BYTES=str(1001 * MIB))
        self.backend.initialise()
        (_, fraction), (_, other) = self.backend.fractions
        self.assertEqual(fraction, other)
        self.assertGreaterEqual(fraction * 8192 * MIB, 1001 * MIB)
        self.assertLess(fraction * 8192 * MIB, 1001.02 * MIB)
        self.assertEqual(
            self.said,
            [
                "PyTorch may reserve 1001.0 MiB of this shared GPU's 8.0 GiB: what earlier runs of this job needed, "
                "with a margin. TIDEGAUGE_MEMORY_FRACTION=1 takes this limit away"
            ],
        )

    def test_one_rank_says_so(self) -> None:
        place: dict[str, Any] = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
        self.probe(TIDEGAUGE_GPU_SHARE="0.25", TIDEGAUGE_SHARED_GPU_BYTES=str(MIB), **place)
        self.backend.initialise()
        self.assertEqual(len(self.backend.fractions), 2)
        self.assertEqual(self.said, [])

    def test_what_earlier_runs_needed_is_no_limit_where_it_cannot_be_one(self) -> None:
        need: dict[str, Any] = {"TIDEGAUGE_SHARED_GPU_BYTES": str(1000 * MIB)}
        share: dict[str, Any] = {"TIDEGAUGE_GPU_SHARE": "0.25"}
        for environ, fraction in (
            (need, None),  # a GPU of its own
            ({**need, "TIDEGAUGE_GPU_SHARE": "1"}, None),
            ({**need, **share, "TIDEGAUGE_MEMORY_FRACTION": "1"}, 1.0),
            ({**need, **share, "TIDEGAUGE_MEMORY_FRACTION": "0.05"}, 0.05),
            ({**share, "TIDEGAUGE_SHARED_GPU_BYTES": ""}, None),
            ({**share, "TIDEGAUGE_SHARED_GPU_BYTES": "0"}, None),
            ({**share, "TIDEGAUGE_SHARED_GPU_BYTES": "9g"}, None),
            ({**share, "TIDEGAUGE_SHARED_GPU_BYTES": "9" * 5000}, None),
            (
                {**share, "TIDEGAUGE_SHARED_GPU_BYTES": str(8192 * MIB)},
                None,
            ),  # the GPU is smaller than the earlier ones
        ):
            with self.subTest(str(environ)[:80]):
                self.setUp()
                self.probe(**environ)
                self.backend.initialise()
                self.assertEqual([one for _, one in self.backend.fractions], [] if fraction is None else [fraction] * 2)
                self.assertEqual(self.said, [])

    def test_session_caps_only_devices_in_use_if_a_cap_would_create_contexts(self) -> None:
        self.backend = FakeBackend(2, caps_without_context=False)
        self.probe(TIDEGAUGE_MEMORY_FRACTION="0.5")
        self.backend.initialise()
        self.assertEqual(self.backend.fractions, [])
        self.backend.hold(1, MIB, MIB)
        optimizer = FakeOptimizer(self.backend)
        optimizer.step()
        optimizer.step()
        self.assertEqual(self.backend.fractions, [(1, 0.5)])


class ErrorsOfItsOwn(GuestTestCase):
    def test_a_failing_allocator_call_never_reaches_the_step(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        self.backend.read_error = RuntimeError("Invalid device argument")
        self.step()
        self.assertEqual(probe.faults.count, 1)
        self.assertEqual(len(self.said), 1)

    def test_an_error_is_recorded_on_the_devices_in_use(self) -> None:
        probe = self.probe()
        self.backend.hold(0, MIB, MIB)
        self.backend.initialise()
        self.step()
        self.backend.read_error = RuntimeError("no")
        self.backend.observers[0](0, 1, 2, 3)
        last = self.ring().samples()[-1]
        self.assertEqual((last.event, last.event_a, probe.faults.count), (EventCode.PROBE_ERROR, 1, 1))

    def test_too_many_errors_switch_the_probe_off(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        self.backend.read_error = RuntimeError("no")
        for _ in range(MAX_FAULTS + 5):
            self.backend.observers[0](0, 1, 2, 3)
        self.assertEqual(probe.faults.count, MAX_FAULTS)
        self.assertEqual(len(self.said), 2)
        self.assertIn("switches itself off", self.said[1])

    def test_an_optimizer_of_an_unheard_of_kind_is_no_error_to_the_job(self) -> None:
        self.probe()
        self.backend.initialise()
        assert self.backend.step_hook is not None
        self.backend.step_hook(object(), sys._getframe())

    def test_session_lets_errors_of_the_jobs_signal_handler_through(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        assert probe.watch is not None

        def interrupted() -> None:
            raise KeyboardInterrupt

        probe.watch.step = interrupted  # type: ignore[method-assign] # SAFETY: stands for a handler running in it
        with self.assertRaises(KeyboardInterrupt):
            self.step()


class Forking(GuestTestCase):
    def in_child(self, probe: Probe, *, initialise: bool) -> None:
        """Fork; the child does what torch's children do, and leaves without running the test's clean-up."""
        pid = os.fork()
        if pid == 0:
            try:
                probe.after_fork()
                if initialise:
                    self.backend.initialise()
                    self.backend.hold(0, 7 * MIB, 8 * MIB)
                for _ in range(3):
                    self.step()
                probe.tick()
                probe.close()
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        self.assertEqual(status, 0)

    def test_a_worker_never_writes_its_parents_ring(self) -> None:
        probe = self.probe()
        self.backend.initialise()
        self.backend.hold(0, MIB, MIB)
        self.step()
        before = self.ring().samples()
        self.in_child(probe, initialise=False)
        self.assertEqual(self.ring().samples(), before)
        probe.explicit_step()
        self.assertEqual(probe.faults.count, 0)

    def test_a_worker_that_uses_the_device_itself_gets_its_own_ring(self) -> None:
        probe = self.probe()
        self.in_child(probe, initialise=True)
        (path,) = rings_below(self.run_dir)
        self.assertFalse(os.path.basename(path).startswith(f"{os.getpid()}-"))
        samples = Ring(path).samples()
        self.assertEqual(samples[-1].event, EventCode.DETACHED)
        self.assertEqual(samples[-1].allocated_bytes, 7 * MIB)

    def test_a_worker_closes_what_it_inherited_and_leaves_the_parents_socket_alone(self) -> None:
        probe = self.probe(with_helper=True)
        self.backend.initialise()
        self.in_child(probe, initialise=False)
        self.assertTrue(ask(probe, {"command": "ping"})["ok"])


def ask(probe: Probe, request: dict[str, Any]) -> dict[str, Any]:
    """Ask over the real socket."""
    assert probe.socket_path is not None
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE_S)
        client.connect(probe.socket_path)
        client.sendall(json.dumps(request).encode() + b"\n")
        reply: dict[str, Any] = json.loads(client.makefile().readline())
    return reply


class CommandsOverTheSocket(GuestTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.backend.hold(0, MIB, 2 * MIB)

    def start(self, level: str = "stats", **environ: str) -> Probe:
        probe = self.probe(level, with_helper=True, **environ)
        self.backend.initialise()
        return probe

    def test_ping(self) -> None:
        reply = ask(self.start(), {"command": "ping"})
        self.assertEqual((reply["ok"], reply["pid"], reply["level"], reply["step"]), (True, os.getpid(), "stats", 0))

    def test_a_dormant_probe_reads_nothing_until_it_is_attached(self) -> None:
        probe = self.start("dormant")
        self.step()
        self.assertEqual((self.backend.reads, rings_below(self.run_dir)), ([], []))
        self.assertTrue(ask(probe, {"command": "attach", "level": "stats"})["watching"])
        self.step()
        self.wait_for_events([EventCode.ATTACHED])

    def test_detach_and_attach_again_go_on_in_the_same_ring(self) -> None:
        probe = self.start()
        self.step()
        ask(probe, {"command": "detach"})
        self.backend.reads.clear()
        self.step()
        self.assertEqual(self.backend.reads, [])
        ask(probe, {"command": "attach", "level": "auto"})
        self.step()
        self.wait_for_events([EventCode.ATTACHED, EventCode.DETACHED, EventCode.ATTACHED])
        sequence = [sample.seq for sample in self.ring().samples()]
        self.assertEqual(sequence, list(range(1, len(sequence) + 1)))
        self.assertEqual(len(self.backend.observers), 1)

    def test_fraction(self) -> None:
        probe = self.start()
        self.step()
        self.assertEqual(ask(probe, {"command": "fraction", "value": 0.5}), {"ok": True, "limit_fraction": 0.5})
        self.assertEqual(self.backend.fractions, [(0, 0.5), (1, 0.5)])
        self.assertEqual(self.events()[-1], EventCode.FRACTION_SET)
        identity = self.ring().identity
        assert identity is not None
        self.assertEqual(identity.limit_fraction, 0.5)

    def test_a_bad_fraction_is_refused(self) -> None:
        probe = self.start()
        for value in (0, 2, "half", None, True):
            with self.subTest(value):
                self.assertIn("above 0", ask(probe, {"command": "fraction", "value": value})["error"])
        self.assertEqual(self.backend.fractions, [])

    def test_an_unknown_command_is_answered_with_the_known_ones(self) -> None:
        reply = ask(self.start(), {"command": "explode"})
        self.assertEqual(reply["known"][:5], ["ping", "attach", "detach", "fraction", "empty_cache"])
        self.assertEqual(reply["known"][5:9], ["tell", "checkpoint", "checkpoint_status", "checkpoint_withdraw"])
        self.assertEqual(reply["known"][9:13], ["evidence", "evidence_status", "profile", "profile_status"])
        self.assertEqual(reply["known"][13:], ["snapshot", "record", "holders"])

    def test_the_helper_ticks(self) -> None:
        probe = self.start()
        ticked = threading.Event()
        read = self.backend.read

        def seen(device: int) -> Any:
            ticked.set()
            return read(device)

        self.backend.read = seen
        probe.detach()
        probe.switch_on("stats")
        self.assertTrue(ticked.wait(PATIENCE_S))

    def test_signals_are_left_to_the_threads_of_the_job(self) -> None:
        ask(self.start(), {"command": "ping"})  # so the thread runs
        (helper,) = self.helpers()
        with open(f"/proc/self/task/{helper.native_id}/status") as file:
            blocked = next(int(line.split()[1], 16) for line in file if line.startswith("SigBlk"))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            self.assertTrue(blocked >> (number - 1) & 1)

    def test_the_socket_of_a_dormant_process_that_was_woken_goes_as_well(self) -> None:
        probe = self.start("dormant")
        path = probe.socket_path
        assert path is not None
        self.assertTrue(ask(probe, {"command": "attach"})["ok"])
        probe.close()
        self.assertFalse(os.path.exists(path))

    def test_the_socket_goes_with_the_probe(self) -> None:
        probe = self.start()
        path = probe.socket_path
        assert path is not None
        helpers = self.helpers()
        self.assertEqual(len(helpers), 1)
        probe.close()
        self.assertFalse(os.path.exists(path))
        helpers[0].join(60)  # close() itself waits for half a second only
        self.assertEqual(self.helpers(), [])


class EmptyingTheCache(GuestTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.backend.hold(1, MIB, 2 * MIB)
        self.guest = self.probe()
        self.backend.initialise()
        self.step()

    def ask_during_a_step(self) -> dict[str, Any]:
        """Ask from a second thread, as the helper does, while this one trains."""
        reply: dict[str, Any] = {}
        queued = threading.Event()
        at_next_step = self.guest.at_next_step

        def queue(call: Any) -> None:
            at_next_step(call)
            queued.set()

        self.guest.at_next_step = queue  # type: ignore[method-assign] # SAFETY: to know when the step may come
        commands = Commands(self.guest, step_wait_s=PATIENCE_S)
        asking = threading.Thread(target=lambda: reply.update(commands.answer({"command": "empty_cache"})))
        asking.start()
        self.assertTrue(queued.wait(PATIENCE_S))
        self.step()
        asking.join(PATIENCE_S)
        return reply

    def test_empty_cache_runs_in_the_training_thread_at_a_step_boundary(self) -> None:
        reply = self.ask_during_a_step()
        self.assertTrue(reply["ok"])
        self.assertGreaterEqual(reply["duration_s"], 0)
        self.assertEqual(self.backend.emptied, [1])

    def test_not_while_a_graph_is_captured(self) -> None:
        self.backend.is_capturing = True
        self.assertIn("captured", self.ask_during_a_step()["error"])
        self.assertEqual(self.backend.emptied, [])

    def test_an_error_meanwhile_is_answered_and_not_raised_in_the_step(self) -> None:
        def broken(device: int, /) -> None:
            raise RuntimeError("CUDA error")

        self.backend.empty_cache = broken  # type: ignore[method-assign] # SAFETY: a device that fails
        reply = self.ask_during_a_step()
        self.assertEqual((reply["error"], reply["kind"]), ("RuntimeError: CUDA error", "unable"))
        self.assertEqual(self.guest.faults.count, 0)

    def test_without_steps_it_gives_up_and_does_nothing_later(self) -> None:
        reply = Commands(self.guest, step_wait_s=0.0).answer({"command": "empty_cache"})
        self.assertIn("no training step", reply["error"])
        self.step()
        self.assertEqual(self.backend.emptied, [])

    def test_a_job_that_makes_no_steps_can_be_asked_to_do_it_now(self) -> None:
        self.assertTrue(Commands(self.guest).answer({"command": "empty_cache", "now": True})["ok"])
        self.assertEqual(self.backend.emptied, [1])


if __name__ == "__main__":
    unittest.main()
