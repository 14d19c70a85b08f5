"""Predicted against measured peaks: each case trains a small model, profiles it, and trains it with a measure applied.

    PYTHONPATH=collector:bench:exporter python bench/profile_advice.py OUT.json --on gpu
    .venv/bin/python tests/fakegpu/rig.py run -- python bench/profile_advice.py OUT.json --on rig

A case trains three steps with allocation history, from before the model is made, and asks the advice for the peak under
one measure. Then it trains three steps with that measure, and reads PyTorch's own peak of allocated memory. The target:
within 2 % of the real peak in every case. Cases of two ranks run where two devices are visible, over NCCL, or gloo on
the rig. Prints a table, writes JSON, and ends with 1 where a case misses.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

MAX_ERROR = 0.02
STEPS = 3
RANKS = 2


class Case(NamedTuple):
    """One measure on one training job."""

    measure: str
    model: str
    optimizer: str = "adamw"
    amp: bool = False
    zero_grad: str = "after step"

    @property
    def name(self) -> str:
        parts = [self.measure, self.model, self.optimizer, "amp" if self.amp else "", self.zero_grad]
        return ", ".join(part for part in parts if part and part != "after step")


CASES = (
    Case("checkpointing", "mlp"),
    Case("checkpointing", "mlp", "sgd"),
    Case("checkpointing", "transformer"),
    Case("checkpointing", "transformer", "sgd"),
    Case("checkpointing", "transformer", amp=True),
    Case("checkpointing", "encoder"),
    Case("checkpointing", "long transformer"),
    Case("checkpointing", "convolutions", "momentum"),
    Case("checkpointing", "residual net"),
    Case("checkpointing", "gated transformer"),
    Case("checkpointing", "gated transformer", amp=True),
    Case("optimizer in backward", "mlp", "sgd"),
    Case("optimizer in backward", "wide mlp"),
    Case("optimizer in backward", "wide mlp", "sgd"),
    Case("optimizer in backward", "short transformer"),
    Case("optimizer in backward", "short tied transformer"),
    Case("optimizer in backward", "short transformer", "momentum"),
    Case("optimizer in backward", "short transformer", amp=True),
    Case("optimizer in backward", "short gated transformer"),
    Case("zero_grad earlier", "mlp", zero_grad="before backward"),
    Case("zero_grad earlier", "transformer", "momentum", zero_grad="before backward"),
    Case("zero_grad earlier", "short transformer", zero_grad="before backward"),
    Case("half the batch, twice", "mlp"),
    Case("half the batch, twice", "transformer"),
    Case("half the batch, twice", "transformer", amp=True),
    Case("half the batch, twice", "encoder", "sgd"),
    Case("half the batch, twice", "gated transformer"),
    Case("half the batch, twice", "residual net", "momentum"),
    Case("twice the batch", "mlp"),
    Case("twice the batch", "transformer"),
    Case("twice the batch", "transformer", amp=True),
    Case("twice the batch", "encoder"),
    Case("twice the batch", "convolutions", "momentum"),
    Case("twice the batch", "gated transformer", "sgd"),
    Case("twice the batch", "gated transformer", amp=True),
    Case("twice the batch", "residual net"),
    Case("chunked loss", "long transformer"),
    Case("chunked loss", "long transformer", "sgd"),
)
OF_TWO_RANKS = (
    Case("sharded state", "mlp"),
    Case("sharded state", "transformer"),
    Case("sharded state", "wide mlp"),
    Case("sharded state", "short gated transformer"),
    Case("fully sharded", "mlp"),
    Case("fully sharded", "wide mlp"),
    Case("fully sharded", "short transformer"),
    Case("fully sharded", "short gated transformer"),
    Case("fully sharded", "transformer"),
    Case("fully sharded", "transformer", "sgd"),
)


SETTLE_S = 0.3
"""After a step of two ranks: NCCL's watchdog lets go of a step's buckets, which DDP replaces after the first, within
0.1 s."""


class Outcome(NamedTuple):
    case: str
    today_bytes: int
    predicted_bytes: int
    real_bytes: int

    @property
    def error(self) -> float:
        return self.predicted_bytes / self.real_bytes - 1


def made(torch: Any, kind: str, checkpointed: bool, chunks: int) -> tuple[Any, Callable[[float], tuple[Any, ...]]]:
    """A model whose forward pass gives its loss, and what makes it a batch, in times of the usual size."""
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    def run(block: Any, x: Any) -> Any:
        return checkpoint(block, x, use_reentrant=False) if checkpointed else block(x)

    class Attending(nn.Module):  # type: ignore[misc]  # torch is not installed here
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            batch, length, width = x.shape
            parts = self.qkv(self.first(x)).view(batch, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
            scores = (parts[0] @ parts[1].transpose(-1, -2) / 8).softmax(-1) @ parts[2]
            x = x + self.out(scores.transpose(1, 2).reshape(batch, length, width))
            return x + self.mix(self.second(x))

    class Transformer(nn.Module):  # type: ignore[misc]  # torch is not installed here
        def __init__(self, blocks: list[Any], width: int, vocabulary: int, tied: bool) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(blocks)
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)
            if tied:
                self.head.weight = self.embed.weight

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = run(block, x)
            x, wanted = self.norm(x).flatten(0, 1), tokens.flatten()
            if chunks == 1:
                return functional.cross_entropy(self.head(x), wanted)
            parts = zip(x.chunk(chunks), wanted.chunk(chunks), strict=True)
            return sum(checkpoint(self.part, *part, use_reentrant=False) for part in parts) / len(x)

        def part(self, x: Any, wanted: Any) -> Any:
            return functional.cross_entropy(self.head(x), wanted, reduction="sum")

    class Stack(nn.Module):  # type: ignore[misc]  # torch is not installed here
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(
                *(nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(8))
            )
            self.head = nn.Linear(1024, 16)

        def forward(self, x: Any) -> Any:
            for block in self.blocks:
                x = run(block, x)
            return self.head(x).square().mean()

    class Convolving(nn.Module):  # type: ignore[misc]  # torch is not installed here
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norm, self.norm2, self.relu = nn.BatchNorm2d(width), nn.BatchNorm2d(width), nn.ReLU(inplace=True)

        def forward(self, x: Any) -> Any:
            out = self.first(x)
            out = self.relu(self.norm(out))
            out = self.second(out)
            out = self.norm2(out)
            out += x
            return self.relu(out)

    class Bottleneck(nn.Module):  # type: ignore[misc]  # torch is not installed here
        def __init__(self, inside: int, width: int, stride: int) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(inside, width // 4, 1, bias=False), nn.BatchNorm2d(width // 4)
            self.second = nn.Conv2d(width // 4, width // 4, 3, stride, padding=1, bias=False)
            self.norm2, self.norm3 = nn.BatchNorm2d(width // 4), nn.BatchNorm2d(width)
            self.third, self.relu = nn.Conv2d(width // 4, width, 1, bias=False), nn.ReLU(inplace=True)
            shortcut = nn.Sequential(nn.Conv2d(inside, width, 1, stride, bias=False), nn.BatchNorm2d(width))
            self.shortcut = shortcut if inside != width else None

        def forward(self, x: Any) -> Any:
            out = self.relu(self.norm(self.first(x)))
            out = self.second(out)
            out = self.relu(self.norm2(out))
            out = self.norm3(self.third(out))
            out += x if self.shortcut is None else self.shortcut(x)
            return self.relu(out)

    class Gated(nn.Module):  # type: ignore[misc]  # torch is not installed here
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
            self.key, self.value = (nn.Linear(width, width // 4, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
            self.down = nn.Linear(3 * width, width, bias=False)

        def attend(self, x: Any) -> Any:
            query, key, value = (
                part(x).unflatten(-1, (-1, 64)).transpose(1, 2) for part in (self.query, self.key, self.value)
            )
            found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            return self.out(found.transpose(1, 2).flatten(2))

        def forward(self, x: Any) -> Any:
            hidden = self.attend(self.first(x))
            x = x + hidden
            normed = self.second(x)
            return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    class Pictures(nn.Module):  # type: ignore[misc]  # torch is not installed here
        def __init__(self, blocks: list[Any], outputs: int) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 128, 3, padding=1)
            self.blocks = nn.Sequential(*blocks)
            self.head = nn.Linear(outputs, 10)

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for block in self.blocks:
                x = run(block, x)
            return self.head(x.mean((2, 3))).square().mean()

    def tokens(count: int, length: int) -> Callable[[float], tuple[Any, ...]]:
        return lambda times: (torch.zeros(int(count * times), length, dtype=torch.long, device="cuda"),)

    if kind in ("mlp", "wide mlp"):
        rows = 4096 if kind == "mlp" else 64
        return Stack(), lambda times: (torch.zeros(int(rows * times), 1024, device="cuda"),)
    if kind == "gpt":
        return Transformer([Gated(768) for _ in range(12)], 768, 50304, tied=True), tokens(8, 1024)
    if kind in ("convolutions", "residual net"):
        sizes = ((128, 256, 1), (256, 256, 1), (256, 256, 1), (256, 512, 2), (512, 512, 1), (512, 512, 1))
        convolving = [Convolving(128) for _ in range(6)]
        blocks = convolving if kind == "convolutions" else [Bottleneck(*size) for size in sizes]
        outputs = 128 if kind == "convolutions" else 512
        return Pictures(blocks, outputs), lambda times: (torch.zeros(int(32 * times), 3, 64, 64, device="cuda"),)
    if "gated" in kind:
        layers = [Gated(512) for _ in range(8)]
        return Transformer(layers, 512, 16384, tied=False), tokens(2 if "short" in kind else 16, 256)
    if kind == "encoder":
        layers = [nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(6)]
        return Transformer(layers, 512, 8192, tied=False), tokens(16, 256)
    if kind == "long transformer":
        return Transformer([Attending(512) for _ in range(4)], 512, 32768, tied=False), tokens(16, 256)
    layers = [Attending(512) for _ in range(8)]
    return Transformer(layers, 512, 16384, tied="tied" in kind), tokens(16 if "short" not in kind else 2, 256)


class Job:
    """A training job, plain or with measures applied."""

    def __init__(self, torch: Any, case: Case, *measures: str) -> None:
        self._torch, self._case, self._measures = torch, case, measures
        chunks = 8 if "chunked loss" in measures else 1
        self.model, self._batch = made(torch, case.model, "checkpointing" in measures, chunks)
        self.model = self.model.cuda()
        if "fully sharded" in measures:
            fully_shard = importlib.import_module("torch.distributed.fsdp").fully_shard
            for block in self.model.blocks:
                fully_shard(block)
            fully_shard(self.model)
        elif case.measure == "sharded state":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        self.optimizer: Any = None
        self._hooks: list[Any] = []
        if "optimizer in backward" in measures:
            self._step_in_backward()
        elif "sharded state" in measures:
            kind, options = self._optimizer_kind()
            zero = importlib.import_module("torch.distributed.optim").ZeroRedundancyOptimizer
            self.optimizer = zero(self.model.parameters(), optimizer_class=kind, **options)
        else:
            self.optimizer = self._made_optimizer(self.model.parameters())

    def step(self) -> None:
        case = self._case
        sizes = {"half the batch, twice": 0.5, "twice the batch": 2.0}
        times = next((sizes[one] for one in self._measures if one in sizes), 1.0)
        early = case.zero_grad == "before backward" and "zero_grad earlier" not in self._measures
        for part in range(2 if times == 0.5 else 1):
            batch = self._batch(times)
            with self._torch.autocast("cuda", self._torch.bfloat16, enabled=case.amp):
                loss = self.model(*batch)
            if early and part == 0 and self.optimizer is not None:
                self.optimizer.zero_grad()
            loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
            if not early:
                self.optimizer.zero_grad()

    def _optimizer_kind(self) -> tuple[Any, dict[str, Any]]:
        kinds = {"adamw": ("AdamW", {"lr": 1e-4}), "sgd": ("SGD", {"lr": 1e-3})}
        kinds["momentum"] = ("SGD", {"lr": 1e-3, "momentum": 0.9})
        name, options = kinds[self._case.optimizer]
        return getattr(self._torch.optim, name), options

    def _made_optimizer(self, parameters: Any) -> Any:
        kind, options = self._optimizer_kind()
        return kind(parameters, **options)

    def _step_in_backward(self) -> None:
        def stepping(optimizer: Any) -> Callable[[Any], None]:
            def step(_: Any) -> None:
                optimizer.step()
                optimizer.zero_grad()

            return step

        for parameter in self.model.parameters():
            hook = parameter.register_post_accumulate_grad_hook(stepping(self._made_optimizer([parameter])))
            self._hooks.append(hook)

    def end(self) -> None:
        """Let go of the hooks: they hold the parameters, and the garbage collector does not see it."""
        for hook in self._hooks:
            hook.remove()


def trained(torch: Any, case: Case, *, measure: str | None) -> int:
    """The peak of three steps, from before the model is made."""
    job = Job(torch, case, *([measure] if measure else []))
    for _ in range(STEPS):
        job.step()
        torch.cuda.synchronize()
        if torch.distributed.is_initialized():
            time.sleep(SETTLE_S)
    job.end()
    return int(torch.cuda.memory_stats()["allocated_bytes.all.peak"])


def cleared(torch: Any) -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def predicted(torch: Any, case: Case) -> tuple[int, int]:
    """Today's peak as PyTorch counts it, and what the advice says of the measure."""
    from tidegauge.analysis.profile.advice.advise import advice_of
    from tidegauge.analysis.profile.advice.batch import peak_with_batch
    from tidegauge.analysis.profile.advice.curve import Curve
    from tidegauge.analysis.profile.advice.steps import RecordedSteps
    from tidegauge.analysis.profile.recording import recording_of
    from tidegauge.analysis.snapshots.reading import read_bytes
    from tidegauge.analysis.traces.reading import with_beginning

    torch.cuda.memory._record_memory_history(None)
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=200_000, clear_history=True)
    today = trained(torch, case, measure=None)
    snapshot = pickle.dumps(torch.cuda.memory._snapshot(), protocol=4)
    torch.cuda.memory._record_memory_history(None)
    folder = os.environ.get("PROFILE_ADVICE_KEEP")
    if folder:
        Path(folder, f"{case.name.replace(' ', '_')}.pickle").write_bytes(snapshot)
    trace = read_bytes(snapshot).traces[torch.cuda.current_device()]
    recording = recording_of(with_beginning(replace(trace, torch_version=torch.__version__)))
    advice = advice_of(recording, ranks=RANKS)
    if advice.peak_bytes != today:
        print(f"{case.name}: the profile's peak is {advice.peak_bytes:,}, PyTorch's {today:,}", file=sys.stderr)
    if case.measure == "twice the batch":
        steps = RecordedSteps(recording)
        return today, peak_with_batch(steps, Curve(steps.events, (one.block for one in recording.blocks)), 2.0)
    found = [one for one in advice.measures if one.measure.name == MEASURES[case.measure]]
    return today, found[0].peak_bytes if found else today


MEASURES = {
    "checkpointing": "CHECKPOINTING",
    "optimizer in backward": "OPTIMIZER_IN_BACKWARD",
    "zero_grad earlier": "ZERO_GRAD_EARLIER",
    "half the batch, twice": "ACCUMULATION",
    "chunked loss": "CHUNKED_LOSS",
    "sharded state": "SHARDED_STATE",
    "fully sharded": "FULLY_SHARDED",
}


def outcomes(torch: Any, cases: tuple[Case, ...], *, warm_up: bool = True) -> Iterator[Outcome]:
    for model in ("mlp", "convolutions") if warm_up else ():
        trained(torch, Case("", model), measure=None)  # what libraries take once in a process is no part of a measure
    for case in cases:
        cleared(torch)
        today, expected = predicted(torch, case)
        cleared(torch)
        yield Outcome(case.name, today, expected, trained(torch, case, measure=case.measure))


def of_ranks(torch: Any, cases: tuple[Case, ...], backend: str, scratch: Path) -> Iterator[Outcome]:
    """The same in two ranks. Each run has processes of its own: DDP keeps buckets of a model that is gone."""
    for case in cases:
        told = []
        for number, measure in enumerate((None, case.measure)):
            out = scratch / f"{number}.json"
            torch.multiprocessing.spawn(in_rank, (backend, case, measure, str(out)), nprocs=RANKS)
            told += json.loads(out.read_text(encoding="utf-8"))
        yield Outcome(case.name, *told)


def in_rank(rank: int, backend: str, case: Case, measure: str | None, out: str) -> None:
    """One of two ranks. The first writes its peak with the measure; without one today's, and what is predicted."""
    import torch

    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group(backend)
    told = predicted(torch, case) if measure is None else [trained(torch, case, measure=measure)]
    if rank == 0:
        Path(out).write_text(json.dumps(told), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def shown(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """All of them, each printed as it comes."""
    print(f"{'case':<62} {'today':>9} {'predicted':>9} {'measured':>9} {'error':>7}")
    found = []
    for one in outcomes:
        sizes = (f"{size / 2**20:9.1f}" for size in one[1:])
        missed = "" if abs(one.error) <= MAX_ERROR else "  MISSED"
        print(f"{one.case:<62} {' '.join(sizes)} {one.error:7.2%}{missed}", flush=True)
        found.append(one)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--on", choices=("rig", "gpu"), required=True)
    parser.add_argument("--only", default="", help="cases whose name has this")
    args = parser.parse_args()
    import torch

    began = time.monotonic()
    found = shown(outcomes(torch, tuple(case for case in CASES if args.only in case.name)))
    cases = tuple(case for case in OF_TWO_RANKS if args.only in case.name)
    if cases and torch.cuda.device_count() >= RANKS:
        backend = "nccl" if args.on == "gpu" else "gloo"
        with tempfile.TemporaryDirectory(prefix="profile-advice-") as scratch:
            found += shown(of_ranks(torch, cases, backend, Path(scratch)))
    missed = [one.case for one in found if abs(one.error) > MAX_ERROR]
    print(
        f"{len(found) - len(missed)} of {len(found)} within {MAX_ERROR:.0%}; torch {torch.__version__}, "
        f"{time.monotonic() - began:.0f} s"
    )
    args.out.write_text(
        json.dumps([{**one._asdict(), "error": one.error} for one in found], indent=1), encoding="utf-8"
    )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
