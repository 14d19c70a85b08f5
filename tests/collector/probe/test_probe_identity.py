# unittest, not pytest: these tests run under every Python of the jobs, which need not have pytest
# ruff: noqa: PT009
from __future__ import annotations

import unittest
from typing import Optional

from tidegauge.core.ids import DeviceUuid, ProcessId, RankIdentity
from tidegauge.core.ring_layout import HEADER_BYTES, IDENTITY_OFFSET, decode_identity, encode_identity
from tidegauge.core.torch_version import torch_at_least
from tidegauge.probe.identity import RankPlace, TorchFacts, claimed_place, identify
from tidegauge.probe.process_facts import OwnProcessFacts

PROCESS = OwnProcessFacts(
    hostname="node7",
    process=ProcessId(500, 5000),
    group_leader=ProcessId(300, 3000),
    parent=ProcessId(400, 4000),
    script="train.py",
)
TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "node7",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "TORCHELASTIC_MAX_RESTARTS": "3",
}
SRUN = {
    "SLURM_JOB_ID": "99",
    "SLURM_JOB_NAME": "llm",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_ID": "0",
}


def who(
    environ: dict[str, str], process: OwnProcessFacts = PROCESS, distributed: Optional[tuple[int, int]] = None
) -> RankIdentity:
    return identify(environ, process, TorchFacts("2.13.0", distributed=distributed), level="stats")


class Places(unittest.TestCase):
    def test_a_lone_process_of_a_leaderworkerset_is_the_rank_that_its_pod_is_until_it_knows_better(self) -> None:
        pod = {"LWS_WORKER_INDEX": "2", "LWS_GROUP_SIZE": "4", "LWS_LEADER_ADDRESS": "vllm-0.vllm.team-a"}
        for environ, distributed, expected in (
            (pod, None, (2, 4)),
            (pod, (17, 32), (17, 32)),
            ({**pod, **TORCHRUN}, None, (3, 4)),
            ({**pod, "LWS_GROUP_SIZE": "2"}, None, (0, 1)),
        ):
            found = who(environ, distributed=distributed)
            self.assertEqual((found.rank, found.world_size), expected)

    def test_each_launcher_is_understood(self) -> None:
        openmpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}
        table: list[tuple[str, dict[str, str], Optional[RankPlace]]] = [
            ("nobody", {}, None),
            ("torchrun", TORCHRUN, RankPlace(3, 1, 4)),
            ("srun", SRUN, RankPlace(5, 1, 8)),
            ("torchrun inside srun", {**SRUN, **TORCHRUN}, RankPlace(3, 1, 4)),
            ("a task of part of the allocation", {**SRUN, "SLURM_NTASKS": "16"}, RankPlace(5, 1, 8)),
            ("OpenMPI", openmpi, RankPlace(2, 0, 4)),
            ("MPICH", {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, RankPlace(1, 1, 2)),
            ("sbatch, not a task", {"SLURM_JOB_ID": "9", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
            ("the batch step", {**SRUN, "SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"}, None),
            ("the batch step of Slurm 26.05", {**SRUN, "SLURM_STEP_ID": "-5", "SLURM_PROCID": "0"}, None),
            ("no local rank", {"RANK": "1", "WORLD_SIZE": "2"}, RankPlace(1, 0, 2)),
            ("a rank outside its world", {"RANK": "4", "WORLD_SIZE": "4"}, None),
            ("text for a number", {"RANK": "one", "WORLD_SIZE": "4"}, None),
            ("a negative rank", {"RANK": "-1", "WORLD_SIZE": "4"}, None),
            ("contradictory torchrun inside srun", {**SRUN, "RANK": "9", "WORLD_SIZE": "2"}, RankPlace(5, 1, 8)),
        ]
        for name, environ, place in table:
            with self.subTest(name):
                self.assertEqual(claimed_place(environ), place)

    def test_a_lone_process_is_rank_0_of_1(self) -> None:
        identity = who({})
        self.assertEqual((identity.rank, identity.local_rank, identity.world_size), (0, 0, 1))

    def test_the_process_group_tells_where_the_environment_does_not(self) -> None:
        identity = who({}, distributed=(2, 4))
        self.assertEqual((identity.rank, identity.world_size), (2, 4))

    def test_the_environment_wins_over_the_process_group(self) -> None:
        self.assertEqual(who(TORCHRUN, distributed=(0, 2)).rank, 3)


class JobIds(unittest.TestCase):
    def test_the_job_is_named_by_whoever_knows_it_best(self) -> None:
        two_nodes = {**TORCHRUN, "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"}
        table: list[tuple[str, dict[str, str], str]] = [
            ("tidegauge run", {**SRUN, "TIDEGAUGE_JOB_ID": "mine"}, "mine"),
            ("Slurm", SRUN, "99"),
            ("Slurm array", {**SRUN, "SLURM_ARRAY_JOB_ID": "90", "SLURM_ARRAY_TASK_ID": "3"}, "90_3"),
            ("torchrun in Slurm", {**SRUN, **TORCHRUN}, "99"),
            ("torchrun over nodes with a run id", {**two_nodes, "TORCHELASTIC_RUN_ID": "r1"}, "torchrun-r1"),
            ("torchrun over nodes without one", two_nodes, "torchrun-node7-29500"),
            ("torchrun on one node", TORCHRUN, "local-node7-400-4000"),
            ("accelerate, deepspeed", {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "local-node7-300-3000"),
            ("Lightning's child", {"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "local-node7-300-3000"),
            ("Ray Train", {"RAY_JOB_ID": "0100", "RANK": "0", "WORLD_SIZE": "2"}, "ray-0100"),
            ("alone", {}, "local-node7-500-5000"),
        ]
        for name, environ, job_id in table:
            with self.subTest(name):
                self.assertEqual(who(environ).job_id, job_id)

    def test_ranks_of_mp_spawn_share_the_job_of_the_process_that_spawned_them(self) -> None:
        spawner = ProcessId(500, 5000)
        child = PROCESS._replace(process=ProcessId(501, 5001), spawned_by=spawner)
        self.assertEqual(who({}, child).job_id, who({}).job_id)

    def test_an_elastic_restart_does_not_make_another_job(self) -> None:
        again = {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1", "MASTER_PORT": "41234"}
        restarted = PROCESS._replace(process=ProcessId(600, 6000))
        self.assertEqual(who(again, restarted).job_id, who(TORCHRUN).job_id)


class Attempts(unittest.TestCase):
    def test_every_restart_is_an_attempt_of_its_own(self) -> None:
        seen = [
            who({**SRUN, **TORCHRUN, "SLURM_RESTART_COUNT": str(requeues), "TORCHELASTIC_RESTART_COUNT": str(restarts)})
            for requeues in range(3)
            for restarts in range(4)
        ]
        self.assertEqual([identity.attempt for identity in seen], list(range(12)))

    def test_the_schedulers_restarts_can_be_told_from_the_launchers(self) -> None:
        for requeues in range(3):
            environ = {**SRUN, **TORCHRUN, "SLURM_RESTART_COUNT": str(requeues), "TORCHELASTIC_RESTART_COUNT": "2"}
            identity = who(environ)
            self.assertEqual(divmod(identity.attempt, identity.attempts_each), (requeues, 2))
        self.assertEqual(who({}).attempts_each, 1)

    def test_restarts_by_tidegauge_run_are_attempts_of_what_slurm_started(self) -> None:
        seen = [
            who({
                **SRUN, **TORCHRUN, "SLURM_RESTART_COUNT": str(requeues), "TIDEGAUGE_ATTEMPT": str(kept),
                "TORCHELASTIC_RESTART_COUNT": str(restarts),
            })
            for requeues in range(3) for kept in (0, 1, 7) for restarts in range(4)
        ]  # fmt: skip
        attempts = [identity.attempt for identity in seen]
        self.assertEqual(sorted(set(attempts)), attempts)
        self.assertEqual(
            [identity.attempt // identity.attempts_each for identity in seen], [*[0] * 12, *[1] * 12, *[2] * 12]
        )

    def test_outside_slurm_tidegauge_run_is_the_scheduler(self) -> None:
        identity = who({**TORCHRUN, "TIDEGAUGE_ATTEMPT": "5", "TORCHELASTIC_RESTART_COUNT": "1"})
        self.assertEqual((identity.attempt, identity.attempts_each), (21, 4))

    def test_in_a_pod_the_attempt_is_the_workloads_and_elastic_restarts_are_within(self) -> None:
        environ = {**TORCHRUN, "KUBERNETES_SERVICE_HOST": "10.0.0.1", "TIDEGAUGE_JOB_ID": "team-a/llm"}
        seen = [
            who({**environ, "TIDEGAUGE_ATTEMPT": str(starts), "TORCHELASTIC_RESTART_COUNT": str(restarts)})
            for starts in range(3) for restarts in range(4)
        ]  # fmt: skip
        self.assertEqual([identity.attempt for identity in seen], list(range(12)))
        self.assertEqual({identity.attempts_each for identity in seen}, {4})
        self.assertEqual({(identity.job_id, identity.scheduler) for identity in seen}, {("team-a/llm", "kubernetes")})

    def test_no_restart_known_is_attempt_0(self) -> None:
        self.assertEqual(who({}).attempt, 0)


class OtherClaims(unittest.TestCase):
    def test_scheduler(self) -> None:
        for environ, scheduler in (
            (SRUN, "slurm"),
            ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
            ({"RAY_JOB_ID": "01"}, "ray"),
            ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}", "RANK": "0"}, "ray"),
            ({}, "local"),
        ):
            with self.subTest(scheduler):
                self.assertEqual(who(environ).scheduler, scheduler)

    def test_run_id_none_is_no_run_id(self) -> None:
        self.assertIsNone(who(TORCHRUN).run_id)

    def test_job_name(self) -> None:
        self.assertEqual(who(SRUN).job_name, "llm")
        self.assertEqual(who({**SRUN, "TIDEGAUGE_JOB_NAME": "x"}).job_name, "x")
        self.assertEqual(who({}).job_name, "train.py")

    def test_the_share_of_a_gpu_is_a_fraction_or_unknown(self) -> None:
        for text, share in (("0.25", 0.25), ("1", 1.0), ("0", None), ("2", None), ("half", None), ("", None)):
            self.assertEqual(who({"TIDEGAUGE_GPU_SHARE": text}).gpu_share, share, text)
        self.assertIsNone(who({}).gpu_share)

    def test_identity_reads_pytorch_alloc_conf_only_for_a_torch_that_does(self) -> None:
        new = {"PYTORCH_ALLOC_CONF": "a:1"}
        old_too = {**new, "PYTORCH_CUDA_ALLOC_CONF": "b:2"}
        for version, environ, conf in (
            ("2.9.1+cu128", new, None),
            ("2.9.1+cu128", old_too, "b:2"),
            ("2.10.0", new, "a:1"),
            ("2.13.0", old_too, "b:2"),
        ):
            with self.subTest(version=version, environ=environ):
                self.assertEqual(identify(environ, PROCESS, TorchFacts(version), level="stats").alloc_conf, conf)

    def test_a_strange_environment_still_makes_an_identity_that_readers_accept(self) -> None:
        strange = {
            "TIDEGAUGE_JOB_ID": "a\nb\udcff\x00" + "c" * 5000,
            "SLURM_JOB_NAME": "\t\x1b[31m",
            "PYTORCH_CUDA_ALLOC_CONF": "x" * 9000,
            "WORLD_SIZE": "9" * 50,
            "RANK": "٣",
            "SLURM_JOB_ID": "1",
            "TIDEGAUGE_ATTEMPT": "16777216",
            "SLURM_RESTART_COUNT": "16777216",
            "TORCHELASTIC_MAX_RESTARTS": "16777216",
        }
        torch = TorchFacts("2.13.0\n", tuple(DeviceUuid(f"GPU-{'0' * 36}") for _ in range(64)))
        identity = identify(strange, PROCESS, torch, level="auto", limit_fraction=0.5)
        page = bytearray(HEADER_BYTES)
        block = encode_identity(identity, generation=2)
        page[IDENTITY_OFFSET : IDENTITY_OFFSET + len(block)] = block
        read = decode_identity(bytes(page))
        assert read is not None
        self.assertEqual((read.profile, read.limit_fraction, read.rank), ("auto", 0.5, 0))

    def test_torch_versions(self) -> None:
        for version, answer in (("2.10.0+cu130", True), ("2.9.1", False), ("3.0", True), ("nightly", False)):
            with self.subTest(version):
                self.assertEqual(torch_at_least(version, 2, 10), answer)


if __name__ == "__main__":
    unittest.main()
