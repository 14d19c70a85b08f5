"""The probe in real training processes: the real CUDA build of torch on the fake-GPU rig, nothing of torch mocked."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from probe_fakes import Ring, rings_below
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.probe.activation.launch import activation_environ

pytestmark = pytest.mark.rig

COLLECTOR = Path(__file__).parents[2] / "collector"
GIB = 1 << 30

TRAINING = """
import json, os, sys, time, torch
def model_and_optimizer(kind=torch.optim.AdamW):
    model = torch.nn.Linear(256, 256, device="cuda")
    return model, kind(model.parameters())
def train(model, optimizer, steps, micro_batches=1, pause_s=0.012):
    for _ in range(steps):
        for _ in range(micro_batches):
            model(torch.zeros(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(pause_s)  # steps closer than 10 ms share a record
"""


class Jobs:
    """Starts jobs on fake GPUs of their own and reads the rings that they leave."""

    def __init__(self, rig: Rig, scratch: Path) -> None:
        self.rig = rig
        self.scratch = scratch
        self.run_dir = scratch / "run"

    def command(self, code: str, *flags: str) -> list[str]:
        script = self.scratch / "job.py"
        script.write_text(TRAINING + textwrap.dedent(code))
        return [str(self.rig.python), *flags, str(script)]

    def environ(self, level: str, *, pythonpath: bool = True) -> dict[str, str]:
        environ = self.rig.environ(devices=2, total_bytes=8 * GIB, state=self.scratch / "gpus")
        for name in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environ.pop(name, None)
        environ |= activation_environ(level, environ, pythonpath=pythonpath)
        return {**environ, "TIDEGAUGE_RUN_DIR": str(self.run_dir)}

    def run(self, code: str, *flags: str, level: str = "stats", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(code, *flags),
            env=self.environ(level) | more,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    def ok(self, code: str, *, level: str = "stats", **more: str) -> tuple[Any, list[str]]:
        """What a job that must succeed printed as JSON, and what the probe said."""
        result = self.run(code, level=level, **more)
        assert result.returncode == 0, result.stderr[-3000:]
        said = [line for line in result.stderr.splitlines() if line.startswith("tidegauge:")]
        return (json.loads(result.stdout) if result.stdout else None), said

    def rings(self) -> list[Ring]:
        return [Ring(path) for path in rings_below(str(self.run_dir))]

    def ring(self) -> Ring:
        (ring,) = self.rings()
        return ring


@pytest.fixture
def jobs(rig: Rig, tmp_path: Path) -> Jobs:
    return Jobs(rig, tmp_path)


@pytest.fixture
def started(jobs: Jobs) -> Iterator[list[subprocess.Popen[str]]]:
    """Jobs that a test started and may leave running."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(30)
        for pipe in filter(None, (process.stdin, process.stdout)):
            pipe.close()


def steps_of(samples: list[Sample]) -> list[int]:
    return [sample.step for sample in samples if sample.kind is RecordKind.STEP]


def events_of(samples: list[Sample]) -> list[EventCode]:
    return [sample.event for sample in samples if sample.kind is RecordKind.EVENT]


def test_steps_are_counted_once_whatever_the_optimizer_does(jobs: Jobs) -> None:
    """Gradient accumulation, super().step(), GradScaler; and the user's peak stays the user's."""
    facts, said = jobs.ok(
        """
        class Mine(torch.optim.AdamW):
            def step(self, closure=None):
                return super().step(closure)
        torch.optim.AdamW([torch.zeros(1)])  # torch wraps step() of a class at its first instance
        model, optimizer = model_and_optimizer(Mine)
        train(model, optimizer, 5, micro_batches=4)

        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            scaler.scale(model(torch.zeros(8, 256, device="cuda")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            time.sleep(0.012)

        torch.cuda.reset_peak_memory_stats()
        big = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        peak = torch.cuda.max_memory_allocated()
        del big
        train(model, optimizer, 5)
        for _ in range(15):  # two ticks and more, and in pieces: a machine that stands still takes one of them away
            time.sleep(0.1)
        print(json.dumps({"peak": peak, "peak_after": torch.cuda.max_memory_allocated(),
                          "history": torch._C._cuda_isHistoryEnabled()}))
        """
    )
    assert said == []
    assert facts["peak"] == facts["peak_after"] >= 64 << 20
    assert facts["history"] is False
    samples = jobs.ring().samples()
    assert steps_of(samples) == list(range(1, 14))
    assert samples[-1].raw_steps == 26
    assert samples[-1].allocated_peak_bytes == facts["peak"]
    assert RecordKind.TICK in {sample.kind for sample in samples}
    assert events_of(samples) == [EventCode.ATTACHED, EventCode.DETACHED]
    assert [sample.seq for sample in samples] == list(range(1, len(samples) + 1))


def test_the_identity_says_who_it_is_and_on_which_gpus(jobs: Jobs) -> None:
    jobs.ok(
        "train(*model_and_optimizer(), 1)",
        RANK="1",
        LOCAL_RANK="1",
        WORLD_SIZE="2",
        TIDEGAUGE_JOB_ID="j7",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    identity = jobs.ring().identity
    assert identity is not None
    assert (identity.job_id, identity.rank, identity.world_size) == ("j7", 1, 2)
    assert identity.torch_version is not None
    assert identity.torch_version.startswith("2.")
    assert identity.alloc_conf == "expandable_segments:True"
    assert [uuid[:4] + uuid[-1:] for uuid in identity.device_uuids] == ["GPU-0", "GPU-1"]


def test_an_out_of_memory_error_is_recorded_and_stays_the_same(jobs: Jobs) -> None:
    code = """
        keep = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
        try:
            torch.empty(20 << 30, dtype=torch.uint8, device="cuda:1")
        except torch.OutOfMemoryError as error:
            print(json.dumps([type(error).__name__, str(error).replace(f"Process {os.getpid()} ", "Process PID ")]))
        """
    without, _ = jobs.ok(code, level="off")
    with_probe, said = jobs.ok(code)
    assert with_probe == without
    assert said == []
    ring = jobs.ring()
    assert ring.samples(0) == []
    out_of_memory = next(sample for sample in ring.samples(1) if sample.event is EventCode.OUT_OF_MEMORY)
    assert out_of_memory.event_a == 20 * GIB
    assert out_of_memory.event_b < 7 * GIB
    assert out_of_memory.event_c == 8 * GIB
    assert (out_of_memory.ooms, out_of_memory.allocated_bytes) == (1, GIB)


def test_a_cap_is_in_force_before_the_first_allocation_and_makes_no_context(jobs: Jobs) -> None:
    facts, said = jobs.ok(
        """
        facts = {"initialised_by_import": torch.cuda.is_initialized()}
        try:
            torch.empty(5 << 30, dtype=torch.uint8, device="cuda:1")
        except torch.OutOfMemoryError as error:
            facts["error"] = str(error)
        facts["fits"] = torch.empty(3 << 30, dtype=torch.uint8, device="cuda:1").numel()
        facts["current"] = torch.cuda.current_device()
        print(json.dumps(facts))
        """,
        TIDEGAUGE_MEMORY_FRACTION="0.5",
    )
    assert facts["initialised_by_import"] is False
    assert "4.00 GiB allowed" in facts["error"]
    assert facts["fits"] == 3 * GIB
    assert facts["current"] == 0
    assert said == []
    ring = jobs.ring()
    assert ring.identity is not None
    assert ring.identity.limit_fraction == 0.5
    set_event = next(sample for sample in ring.samples(1) if sample.event is EventCode.FRACTION_SET)
    assert set_event.event_a == 500_000


def test_a_job_on_a_shared_gpu_may_take_what_its_earlier_runs_needed_and_is_told(jobs: Jobs) -> None:
    facts, said = jobs.ok(
        """
        facts = {}
        held = torch.empty(3 << 30, dtype=torch.uint8, device="cuda:1")
        facts["fits"] = held.numel()
        try:
            torch.empty(1 << 30, dtype=torch.uint8, device="cuda:1")
        except torch.OutOfMemoryError as error:
            facts["error"] = str(error)
        facts["reserved"] = torch.cuda.memory_reserved(1)
        print(json.dumps(facts))
        """,
        TIDEGAUGE_GPU_SHARE="0.5",
        TIDEGAUGE_SHARED_GPU_BYTES=str(3 * GIB),
        TIDEGAUGE_EXPLAIN_OOM="off",
    )
    assert facts["fits"] == facts["reserved"] == 3 * GIB, "not below what was needed"
    assert "3.00 GiB allowed" in facts["error"]
    assert said == [
        "tidegauge: PyTorch may reserve 3.0 GiB of this shared GPU's 8.0 GiB: what earlier runs of this job needed, "
        "with a margin. TIDEGAUGE_MEMORY_FRACTION=1 takes this limit away"
    ]
    identity = jobs.ring().identity
    assert identity is not None
    assert identity.limit_fraction == 0.375


def test_a_bad_cap_is_one_line(jobs: Jobs) -> None:
    _, said = jobs.ok("train(*model_and_optimizer(), 2)", TIDEGAUGE_MEMORY_FRACTION="2")
    assert said == ["tidegauge: TIDEGAUGE_MEMORY_FRACTION='2' is not above 0 and at most 1: no cap is set"]


def test_records_survive_sigkill(jobs: Jobs, started: list[subprocess.Popen[str]]) -> None:
    job = subprocess.Popen(
        jobs.command("train(*model_and_optimizer(), 8); print('trained', flush=True); time.sleep(600)"),
        env=jobs.environ("stats"),
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(job)
    assert job.stdout is not None
    assert job.stdout.readline() == "trained\n"
    job.send_signal(signal.SIGKILL)
    job.wait(30)
    samples = jobs.ring().samples()
    assert steps_of(samples) == list(range(1, 9))
    assert EventCode.DETACHED not in events_of(samples)


def test_workers_do_not_write_their_parents_ring_and_get_their_own_only_with_cuda(jobs: Jobs) -> None:
    facts, said = jobs.ok(
        """
        import torch.multiprocessing as mp
        class Data(torch.utils.data.Dataset):
            def __len__(self): return 8
            def __getitem__(self, index):
                model = torch.nn.Linear(2, 2)
                torch.optim.SGD(model.parameters(), lr=0.1).step()  # fires the hook in the worker
                return float(os.getpid())
        def on_cpu(): torch.zeros(1)
        def on_gpu():
            train(*model_and_optimizer(), 2)
        if __name__ == "__main__":
            model, optimizer = model_and_optimizer()
            train(model, optimizer, 3)
            pids = {int(pid) for batch in torch.utils.data.DataLoader(Data(), num_workers=2,
                    multiprocessing_context="fork") for pid in batch}
            spawn = mp.get_context("spawn")
            children = [spawn.Process(target=on_cpu), spawn.Process(target=on_gpu)]
            for child in children: child.start()
            for child in children: child.join()
            train(model, optimizer, 3)
            print(json.dumps({"parent": os.getpid(), "workers": sorted(pids), "gpu_child": children[1].pid,
                              "exits": [child.exitcode for child in children]}))
        """
    )
    assert facts["exits"] == [0, 0]
    assert len(facts["workers"]) == 2
    assert said == []
    rings = {ring.header.pid: ring for ring in jobs.rings()}
    assert set(rings) == {facts["parent"], facts["gpu_child"]}
    assert steps_of(rings[facts["parent"]].samples()) == [1, 2, 3, 4, 5, 6]
    assert steps_of(rings[facts["gpu_child"]].samples()) == [1, 2]
    job_ids = {ring.identity.job_id for ring in rings.values() if ring.identity is not None}
    assert len(job_ids) == 1


def test_a_dormant_rank_is_woken_capped_and_emptied_over_its_socket(
    jobs: Jobs, started: list[subprocess.Popen[str]]
) -> None:
    job = subprocess.Popen(
        jobs.command(
            """
            model, optimizer = model_and_optimizer()
            train(model, optimizer, 2)  # before what is cached, or cuBLAS's workspace would take a part of it
            cached = torch.empty(256 << 20, dtype=torch.uint8, device="cuda"); del cached
            print("trained", flush=True)
            while sys.stdin.readline():
                train(model, optimizer, 2)
                facts = [torch.cuda.memory_reserved(), torch.cuda.get_per_process_memory_fraction()]
                print(json.dumps(facts), flush=True)
            """
        ),
        env=jobs.environ("dormant"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    started.append(job)
    assert job.stdout is not None
    assert job.stdin is not None
    assert job.stdout.readline() == "trained\n"
    (socket_path,) = jobs.run_dir.glob("*/*.sock")
    assert jobs.rings() == []

    def asked(**request: Any) -> socket.socket:
        """A connection of its own: the probe closes one on which nothing is said for 5 s."""
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(30)
        client.connect(str(socket_path))
        client.sendall(json.dumps(request).encode() + b"\n")
        return client

    def ask(**request: Any) -> Any:
        with asked(**request) as client, client.makefile() as replies:
            return json.loads(replies.readline())

    assert ask(command="ping")["level"] == "dormant"
    assert ask(command="attach", level="stats")["watching"] is True
    assert ask(command="fraction", value=0.25) == {"ok": True, "limit_fraction": 0.25}
    job.stdin.write("go\n")
    reserved_before, fraction = json.loads(job.stdout.readline())
    assert (fraction, reserved_before > 256 << 20) == (0.25, True)
    with asked(command="empty_cache") as client:
        # The command waits for a step: give it some until it has been answered.
        client.settimeout(0.2)
        reply = b""
        while not reply.endswith(b"\n"):
            job.stdin.write("go\n")
            reserved_after, _ = json.loads(job.stdout.readline())
            try:
                reply += client.recv(4096)
            except TimeoutError:
                continue
    assert json.loads(reply)["ok"] is True
    job.stdin.write("go\n")
    reserved_after, _ = json.loads(job.stdout.readline())
    assert reserved_after < 128 << 20
    job.stdin.close()
    assert job.wait(30) == 0
    samples = jobs.ring().samples()
    assert events_of(samples)[:3] == [EventCode.ATTACHED, EventCode.FRACTION_SET, EventCode.DETACHED]
    assert samples[-1].step > 4


def test_both_ranks_of_torchrun_belong_to_one_job_and_the_launcher_has_no_ring(jobs: Jobs) -> None:
    command = jobs.command("torch.cuda.set_device(int(os.environ['LOCAL_RANK'])); train(*model_and_optimizer(), 2)")
    result = subprocess.run(
        [command[0], "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", command[-1]],
        env=jobs.environ("stats") | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    rings = jobs.rings()
    identities = [ring.identity for ring in rings if ring.identity is not None]
    assert sorted(identity.rank for identity in identities) == [0, 1]
    assert {identity.world_size for identity in identities} == {2}
    assert len({identity.job_id for identity in identities}) == 1
    for ring in rings:
        assert ring.identity is not None
        own, other = ring.identity.local_rank, 1 - ring.identity.local_rank
        assert steps_of(ring.samples(own)) == [1, 2]
        assert ring.samples(other) == []


def test_an_environment_that_has_tidegauge_needs_only_the_variable_and_isolation_does_not_matter(
    jobs: Jobs, rig: Rig
) -> None:
    """A real virtual environment with the ``.pth`` line, under ``python -I``, which ignores PYTHONPATH."""
    venv = jobs.scratch / "venv"
    subprocess.run([rig.python, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    (site_packages,) = venv.glob("lib/python*/site-packages")
    (torch_packages,) = rig.venv.glob("lib/python*/site-packages")
    (site_packages / "_packages.pth").write_text(f"{torch_packages}\n{COLLECTOR}\n")
    line = (COLLECTOR / "tidegauge/probe/activation/tidegauge-probe.pth").read_text()
    (site_packages / "tidegauge-probe.pth").write_text(line)
    script = jobs.command("train(*model_and_optimizer(), 2)")[-1]
    result = subprocess.run(
        [venv / "bin" / "python", "-I", script],
        env=jobs.environ("stats", pythonpath=False),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert steps_of(jobs.ring().samples()) == [1, 2]


def test_off_leaves_no_trace(jobs: Jobs) -> None:
    facts, said = jobs.ok(
        """
        train(*model_and_optimizer(), 2)
        import threading
        print(json.dumps([len(threading.enumerate()), any(name.startswith("tidegauge") and "boot" not in name
              and "activation" not in name and "levels" not in name and name.count(".") > 1 for name in sys.modules)]))
        """,
        level="off",
    )
    assert facts == [1, False]
    assert said == []
    assert not jobs.run_dir.exists()


def test_a_job_on_the_cpu_of_a_cuda_build_is_told_once_and_cuda_stays_uninitialised(jobs: Jobs) -> None:
    facts, said = jobs.ok(
        """
        model = torch.nn.Linear(4, 4); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.zeros(1, 4)).sum().backward(); optimizer.step()
        print(json.dumps(torch.cuda.is_initialized()))
        """
    )
    assert facts is False
    assert said == ["tidegauge: no training step has used CUDA so far: no device memory to watch"]
    assert not jobs.run_dir.exists()


def test_an_unwritable_run_directory_is_one_line(jobs: Jobs) -> None:
    _, said = jobs.ok("train(*model_and_optimizer(), 2)", TIDEGAUGE_RUN_DIR="/proc/tidegauge")
    assert len(said) == 1
    assert "no folder to write to (/proc/tidegauge: " in said[0]


def test_the_optimizer_in_backward_makes_one_record_a_step(jobs: Jobs) -> None:
    jobs.ok(
        """
        model = torch.nn.Sequential(*[torch.nn.Linear(8, 8, device="cuda") for _ in range(20)])
        own = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}
        def step(parameter):
            own[parameter].step()
            own[parameter].zero_grad()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(5):
            model(torch.zeros(2, 8, device="cuda")).sum().backward()
            time.sleep(0.012)
        """
    )
    samples = jobs.ring().samples()
    assert steps_of(samples) == [1, 2, 3, 4, 5]
    assert samples[-1].raw_steps == 200


def test_a_new_model_and_optimizer_for_every_step_makes_one_record_a_step(jobs: Jobs) -> None:
    jobs.ok(
        """
        for _ in range(20):
            train(*model_and_optimizer(), 1)
            time.sleep(0.012)
        """
    )
    samples = jobs.ring().samples()
    assert steps_of(samples) == list(range(1, 21))
    assert samples[-1].raw_steps == 20


def test_parameters_that_were_stepped_can_still_be_swapped(jobs: Jobs) -> None:
    """``Module.to()`` of a DTensor swaps, and torch refuses to swap a tensor that has a weak reference."""
    jobs.ok(
        """
        model, optimizer = model_and_optimizer()
        train(model, optimizer, 2)
        optimizer.zero_grad()
        torch.__future__.set_swap_module_params_on_conversion(True)
        model.to("cpu")
        """
    )


def test_the_compiler_does_not_trace_the_probe_into_a_compiled_training_step(jobs: Jobs) -> None:
    facts, said = jobs.ok(
        """
        import warnings
        model, optimizer = model_and_optimizer()
        def whole_step():
            model(torch.zeros(8, 256, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.012)
        compiled = torch.compile(whole_step, backend="eager")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(4): compiled()
        about_probe = [str(w.message) for w in caught if "getframe" in str(w.message) or "tidegauge" in str(w.message)]
        print(json.dumps(about_probe))
        """
    )
    assert (facts, said) == ([], [])
    assert steps_of(jobs.ring().samples()) == [1, 2, 3, 4]


def test_an_attached_process_and_explicit_steps(jobs: Jobs) -> None:
    """``tidegauge.attach()`` and ``step()`` in code, after CUDA is in use already."""
    jobs.ok(
        f"""
        sys.path.insert(0, {str(COLLECTOR)!r})
        import tidegauge
        model, optimizer = model_and_optimizer()
        train(model, optimizer, 3)
        tidegauge.attach()
        for _ in range(4):
            train(model, optimizer, 2)
            tidegauge.step()
            time.sleep(0.012)
        """,
        TIDEGAUGE_PROFILE="",
    )
    samples = jobs.ring().samples()
    assert samples[-1].raw_steps == 8
    assert samples[-1].step == 5
    assert events_of(samples) == [EventCode.ATTACHED, EventCode.DETACHED]


def test_an_evaluation_after_training_and_an_optimizer_in_c_make_no_steps_and_are_read_all_the_same(jobs: Jobs) -> None:
    """What the agent judges by time, where no steps come any more."""
    jobs.ok(
        """
        model, optimizer = model_and_optimizer()
        train(model, optimizer, 5)
        weights = list(model.parameters())
        state = [[torch.zeros_like(weight) for weight in weights] for _ in range(2)]
        counts = [torch.ones((), device="cuda") for _ in weights]
        kept = []
        for _ in range(40):  # no call of Optimizer.step()
            loss = model(torch.zeros(8, 256, device="cuda")).sum()
            loss.backward()
            with torch.no_grad():
                torch._fused_adamw_(
                    weights, [weight.grad for weight in weights], *state, [], counts, amsgrad=False, maximize=False,
                    lr=1e-3, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8)
            kept.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
            time.sleep(0.1)
        """
    )
    samples = jobs.ring().samples()
    assert steps_of(samples) == [1, 2, 3, 4, 5]
    ticks = [sample for sample in samples if sample.kind is RecordKind.TICK and sample.step]
    assert len(ticks) >= 4
    assert {tick.step for tick in ticks} == {5}
    assert ticks[-1].allocated_bytes - ticks[0].allocated_bytes >= 64 << 20
