"""Memory profiles of usual models against PyTorch's counters: do the sums hold, and how much stays unknown?

    python bench/profile_sums.py OUT                            # on a machine with GPUs; two for ddp and fsdp2
    python bench/profile_sums.py OUT --on rig                   # small, on the fake GPUs of the tests
    python bench/profile_sums.py OUT --only resnet unet-amp --sources DIR

nanoGPT (its ``model.py`` in DIR/nanoGPT, as ``bench/public_programs.py --carry`` brings it), a Llama of transformers, a
ViT and a ResNet of torchvision, and a diffusion U-Net (bench/gpu_peaks_own_models.py); each eager, with autocast, with
checkpointing, in DDP, in FSDP2, and compiled. Each case is a process of its own (of two ranks: two): four steps, then
two within ``tidegauge.profile(model, optimizer)``. What a case needs and the machine lacks leaves it out, with a line
that says so.

What must hold: the peak is ``allocated_bytes.all.peak`` of these steps to the byte and the sum of its categories,
parameters and optimizer state are the model's, and unknown is at most 2 % of the peak (compiled: 10 %).
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MODELS = ("nanogpt", "llama", "vit", "resnet", "unet")
MODES = ("eager", "amp", "checkpoint", "ddp", "fsdp2", "compiled")
TWO_RANKS = ("ddp", "fsdp2")
MAX_UNKNOWN_SHARE, MAX_UNKNOWN_SHARE_COMPILED = 0.02, 0.10
WARM_UP_STEPS, PROFILED_STEPS = 3, 2
TIMEOUT_S = 240.0


class Work(NamedTuple):
    """A model and a batch of it."""

    model: Any
    loss: Callable[[Any], Any]
    """Of the model, or of what wraps it."""
    blocks: list[Any]
    """Its repeated parts, which are checkpointed and sharded one by one."""


# ------------------------------------------------------------------------------------------------ the models


def nanogpt(small: bool, sources: Path) -> Work:
    import torch

    sys.path.insert(0, str(sources / "nanoGPT"))
    gpt = importlib.import_module("model")
    layers, width, batch, block = (2, 64, 2, 64) if small else (12, 768, 8, 1024)
    model = gpt.GPT(gpt.GPTConfig(n_layer=layers, n_head=4, n_embd=width, block_size=block, vocab_size=50304)).cuda()
    tokens, targets = torch.randint(50304, (2, batch, block), device="cuda")
    return Work(model, lambda called: called(tokens, targets)[1], list(model.transformer.h))


def llama(small: bool, _sources: Path) -> Work:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, batch, length = (2, 64, 2, 64) if small else (12, 1024, 4, 1024)
    config = LlamaConfig(
        hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, vocab_size=1000 if small else 32000, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda().train()
    tokens = torch.randint(1000, (batch, length), device="cuda")
    return Work(model, lambda called: called(input_ids=tokens, labels=tokens).loss, list(model.model.layers))


def _classifier(model: Any, size: int, batch: int, blocks: list[Any]) -> Work:
    import torch

    images, labels = torch.randn(batch, 3, size, size, device="cuda"), torch.randint(1000, (batch,), device="cuda")
    return Work(model, lambda called: torch.nn.functional.cross_entropy(called(images), labels), blocks)


def vit(small: bool, _sources: Path) -> Work:
    from torchvision.models.vision_transformer import VisionTransformer, vit_b_16

    model = VisionTransformer(32, 8, 2, 4, 64, 128).cuda() if small else vit_b_16().cuda()
    return _classifier(model, 32 if small else 224, 4 if small else 64, list(model.encoder.layers))


def resnet(small: bool, _sources: Path) -> Work:
    from torchvision.models import resnet18, resnet50

    model = (resnet18() if small else resnet50()).cuda()
    blocks = [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    return _classifier(model, 32 if small else 224, 4 if small else 64, blocks)


def unet(small: bool, _sources: Path) -> Work:
    import torch
    from gpu_peaks_own_models import DenoisingUNet, TimedBlock

    model = (DenoisingUNet(32, (1, 2), 1, (1,)) if small else DenoisingUNet(128)).cuda()
    size, batch = (16, 2) if small else (64, 32)
    pictures, noise = torch.randn(2, batch, 3, size, size, device="cuda")
    when = torch.rand(batch, device="cuda")
    blocks = [module for module in model.modules() if isinstance(module, TimedBlock)]
    return Work(model, lambda called: called(pictures, noise, when), blocks)


# ------------------------------------------------------------------------------------------------ one case


def one_case(name: str, *, small: bool, sources: Path) -> dict[str, Any]:
    """Trains one model in one mode and compares; with two ranks, this is one of them."""
    import torch

    import tidegauge

    model_name, _, mode = name.partition("-")
    rank = int(os.environ.get("RANK", "0"))
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    if mode in TWO_RANKS:
        torch.distributed.init_process_group("gloo" if small else "nccl")
    work = globals()[model_name](small, sources)
    model, called = work.model, work.model
    if mode == "checkpoint":
        from torch.utils.checkpoint import checkpoint

        for block in work.blocks:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    elif mode == "ddp":
        called = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    elif mode == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in work.blocks:
            fully_shard(block)
        fully_shard(model)
    elif mode == "compiled":
        called = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=mode == "amp"):
            loss = work.loss(called)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(WARM_UP_STEPS):
        step()
    plain_s = timed(torch, step)
    torch.cuda.reset_peak_memory_stats()
    with tidegauge.profile(model, optimizer) as profiled:
        recorded_s = timed(torch, step)
        for _ in range(PROFILED_STEPS - 1):
            step()
    if profiled.problem is not None:
        return {"problem": profiled.problem}
    peak = profiled.peak
    states = [value for values in optimizer.state.values() for value in values.values()]
    held = {category.value: size for category, size in peak.by_category.items()}
    return {
        "peak_bytes": peak.allocated_bytes,
        "pytorchs_peak_bytes": torch.cuda.memory_stats()["allocated_bytes.all.peak"],
        "phase": peak.phase.value,
        "by_category": held,
        "parameter_bytes": storage_bytes(model.parameters()),
        "state_bytes": storage_bytes(states),
        "unknown_share": peak.unknown_share,
        "events": profiled.profile.events,
        "is_exact": profiled.profile.is_exact,
        "step_ms": round(plain_s * 1e3, 1),
        "recorded_step_ms": round(recorded_s * 1e3, 1),
    }


def timed(torch: Any, step: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return time.perf_counter() - began_s


def storage_bytes(tensors: Iterator[Any] | list[Any]) -> int:
    """Of the storages on the GPU, each once; of a DTensor, this rank's part."""
    locals_ = [getattr(one, "_local_tensor", one) for one in tensors]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in locals_ if one.is_cuda}
    return sum(storages.values())


# ------------------------------------------------------------------------------------------------ all of them


def verdict(name: str, found: Mapping[str, Any]) -> str:
    """``ok``, or what does not hold."""
    if "problem" in found:
        return f"FAILED: {found['problem']}"
    held, wrong = found["by_category"], []
    if not found["peak_bytes"] == found["pytorchs_peak_bytes"] == sum(held.values()):
        wrong.append(f"peak {found['peak_bytes'] - found['pytorchs_peak_bytes']:+,} B")
    if "fsdp2" not in name and held.get("parameters", 0) != found["parameter_bytes"]:
        wrong.append(f"parameters {held.get('parameters', 0) - found['parameter_bytes']:+,} B")
    if held.get("optimizer state", 0) != found["state_bytes"]:
        wrong.append(f"optimizer state {held.get('optimizer state', 0) - found['state_bytes']:+,} B")
    if found["unknown_share"] > (MAX_UNKNOWN_SHARE_COMPILED if "compiled" in name else MAX_UNKNOWN_SHARE):
        wrong.append("unknown")
    return "; ".join(wrong) or "ok"


def run_case(name: str, command: list[str], environ: Mapping[str, str]) -> dict[str, Any]:
    ranks = 2 if name.endswith(TWO_RANKS) else 1
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [*command, "--case", name], env={**environ, **own, "RANK": str(rank)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    found: dict[str, Any] = {}
    for rank, process in enumerate(started):
        try:
            said, errors = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            said, errors = process.communicate()
        lines = [line for line in said.splitlines() if line.startswith("{")]
        if rank == 0 or not lines:
            found = json.loads(lines[-1]) if lines else {"problem": (errors.strip() or "no answer")[-400:]}
    return found


def names_of(only: list[str] | None, *, has: frozenset[str], devices: int) -> Iterator[str]:
    lacks = {"llama": "transformers", "vit": "torchvision", "resnet": "torchvision", "compiled": "triton"}
    for name in (f"{model}-{mode}" for model in MODELS for mode in MODES):
        model, mode = name.split("-")
        needs = {lacks[part] for part in (model, mode) if part in lacks} - has
        if only is not None and not any(word in name for word in only):
            continue
        if needs:
            print(f"not run, it needs {', '.join(sorted(needs))}: {name}", file=sys.stderr)
        elif mode in TWO_RANKS and devices < 2:
            print(f"not run, it needs two GPUs: {name}", file=sys.stderr)
        else:
            yield name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="folder for profile_sums.json")
    parser.add_argument("--on", choices=("gpu", "rig"), default="gpu")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases whose names contain one of these")
    parser.add_argument("--at-once", type=int, default=4, help="cases at a time (default 4)")
    parser.add_argument("--sources", type=Path, default=Path(), metavar="DIR", help="where nanoGPT lies")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--small", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case is not None:
        print(json.dumps(one_case(args.case, small=args.small, sources=args.sources)), flush=True)
        return 0
    if args.out is None:
        parser.error("OUT is needed")
    with tempfile.TemporaryDirectory(prefix="profile-sums-") as scratch:
        python, environ = place(args.on, Path(scratch))
        question = (
            "import sys, torch, importlib.util as u\n"
            "print(torch.cuda.device_count(), *filter(u.find_spec, sys.argv[1:]))"
        )
        asked = subprocess.run(
            [python, "-c", question, "transformers", "torchvision", "triton"],
            env=dict(environ),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        count, *has = asked.stdout.split()
        command = [python, str(Path(__file__).resolve()), "--sources", str(args.sources.resolve())]
        command += ["--small"] * (args.on == "rig")
        names = list(names_of(args.only, has=frozenset(has), devices=int(count)))
        results: dict[str, Any] = {}
        with ThreadPoolExecutor(args.at_once) as pool:
            for name, found in zip(names, pool.map(lambda one: run_case(one, command, environ), names)):
                results[name] = {**found, "verdict": verdict(name, found)}
                print(row(name, results[name]), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "profile_sums.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    wrong = [name for name, found in results.items() if found["verdict"] != "ok"]
    print(f"{len(results) - len(wrong)} of {len(results)} hold")
    return 1 if wrong else 0


def row(name: str, found: Mapping[str, Any]) -> str:
    if "problem" in found:
        return f"{name:20}{found['verdict']}"
    largest = sorted(found["by_category"].items(), key=lambda one: -one[1])[:3]
    told = ", ".join(f"{category} {size / 2**20:,.0f}" for category, size in largest)
    return (
        f"{name:20}{found['peak_bytes'] / 2**20:10,.1f} MiB in {found['phase']:15}"
        f" unknown {found['unknown_share']:6.2%}  {found['events']:6,} events"
        f"  {found['step_ms']:7.1f} -> {found['recorded_step_ms']:7.1f} ms  {found['verdict']:30} {told}"
    )


def link_packages(packages: Path, seen: Path) -> Path:
    """A folder with what a site-packages has beside torch and the libraries of CUDA."""
    seen.mkdir()
    for found in packages.iterdir():
        if not found.name.startswith(("torch", "nvidia", "triton", "functorch")) or found.name.startswith(
            "torchvision"
        ):
            (seen / found.name).symlink_to(found)
    return seen


def place(on: str, scratch: Path) -> tuple[str, Mapping[str, str]]:
    """The Python that runs the cases, and its environment."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
    paths = [str(Path(path).resolve()) for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    paths.append(str(ROOT / "collector"))
    if on == "gpu":
        return sys.executable, {**environ, "PYTHONPATH": os.pathsep.join(paths)}
    sys.path[:0] = [str(ROOT / "tests")]
    from fakegpu.rig import Rig

    rig = Rig()
    reason = rig.available()
    if reason is not None:
        raise SystemExit(f"no rig: {reason}")
    # torchvision is of the same release as the rig's torch; what it and transformers need comes with them.
    found = (ROOT / ".estimate" / "venv" / "lib").glob("python*/site-packages")
    paths += [str(link_packages(packages, scratch / "packages")) for packages in found]
    environ = {**rig.environ(devices=2, state=scratch / "gpus"), "PYTHONPATH": os.pathsep.join(paths)}
    return str(rig.python), environ


if __name__ == "__main__":
    sys.exit(main())
