"""Public training programs under a whole service: healthy, and with a leak planted in them; is it found and named?

    python bench/public_programs.py OUT                          # on the rig; fetches the repositories from GitHub
    python bench/public_programs.py OUT --sources DIR --only dcgan mnist
    python bench/public_programs.py --carry DIR                  # brings the sources, for a machine without network
    python bench/public_programs.py OUT --sources DIR --on gpu   # on a machine with GPUs; needs no Ray and no SQL

Their code is not in this repository: it is fetched at a pinned commit, or taken from DIR, which has a folder, a git
checkout or a bare git directory for each name of ``REPOSITORIES``. A leak is a small edit at a line that a pattern
finds; where it does not match exactly as often as expected, nothing runs. ``# LEAK`` in the inserted text marks a line
that allocates what is kept, ``# CALLER`` one that calls such a line of the program's own.

Data is made here, the models are small: two ranks fit two cores. What a program needs and this machine lacks (GPUs,
torchvision, transformers, lightning) leaves it out, with a line that says so. On the rig torchvision comes from
``make estimate-venv`` and the trainers from ``make trainers``; programs that ask for NCCL get gloo there, by a
``sitecustomize`` of ours. bench/watched_programs.py has the words of the table.

Prints a table; OUT gets ``public_programs.json`` with all of it and the programs' output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import textwrap
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from watched_programs import (
    ALARM,
    FAILED,
    OWN_PROCESS,
    ROOT,
    SIN,
    WRONG,
    Place,
    Program,
    Result,
    Truth,
    copy_logs,
    place_on,
    run_all,
    scratch_on,
    summary_of,
    table_of,
    write,
)


class Repository(NamedTuple):
    """Where programs come from."""

    url: str
    commit: str
    paths: Sequence[str]
    """What is needed of it."""


REPOSITORIES = {
    "nanoGPT": Repository(
        "https://github.com/karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        ("train.py", "model.py", "configurator.py"),
    ),
    "examples": Repository(
        "https://github.com/pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8",
        (
            "dcgan", "mnist", "imagenet", "word_language_model/main.py", "word_language_model/model.py",
            "word_language_model/data.py", "distributed/ddp-tutorial-series", "distributed/FSDP2",
        ),
    ),
    "pytorch-lightning": Repository(
        "https://github.com/Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414",
        ("examples/pytorch/basics",),
    ),
}  # fmt: skip
COMMIT = "COMMIT"
"""A file beside carried sources."""
TRAINER_PACKAGES = ("transformers", "accelerate")

ON_GLOO = '''
"""Has PyTorch take gloo wherever NCCL is asked for, or meant."""
import importlib.abc, importlib.machinery, sys

NAME = "torch.distributed.distributed_c10d"


class Gloo(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name != NAME:
            return None
        self.spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        return importlib.machinery.ModuleSpec(name, self, origin=self.spec.origin)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        module.__file__ = self.spec.origin
        self.spec.loader.exec_module(module)
        init = module.init_process_group

        def with_gloo(backend=None, *args, **kwargs):
            kwargs.pop("device_id", None)
            return init("gloo", *args, **kwargs)

        module.init_process_group = with_gloo


sys.meta_path.insert(0, Gloo())
'''


class Edit(NamedTuple):
    """One change of a program: text at the line that matches ``anchor``."""

    file: str
    anchor: str
    text: str
    """Of a ``swap``: the replacement, as of ``re.sub``. Else lines, which get the anchor's indentation."""
    how: str = "after"
    """``after``, ``before`` or ``swap``."""
    matches: int = 1
    """As many lines match."""
    at: int = 0
    """Which of them it is."""


class Spot(NamedTuple):
    """A line of the program's own that a truth speaks of."""

    file: str
    pattern: str
    matches: int = 1
    at: int | None = None
    """Which of those that match; ``None``: all."""


class Case(NamedTuple):
    """A program, healthy or with a leak."""

    name: str
    base: Base
    edits: Sequence[Edit] = ()
    flags: Sequence[str] = ()
    lines: Sequence[Spot] = ()
    callers: Sequence[Spot] = ()
    holder: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    ranks: frozenset[int] | None = None
    host_process: str = ""
    harmless: bool = False
    seconds: float | None = None
    memory_fraction: float = 0.05
    libraries: str = ""
    """Where those of ``TRAINER_PACKAGES`` lie: ``target`` or ``checkout``; else where they are installed."""

    @property
    def healthy(self) -> bool:
        return self.harmless or not (self.lines or self.host_process or _marked(self.edits) or self.holder)


class Machine(NamedTuple):
    """What programs find here."""

    place: Place
    trainers: str
    """The interpreter that has the trainers' libraries."""
    on: str
    devices: int
    has: frozenset[str]
    at_once: int

    @property
    def ranks(self) -> int:
        return min(self.devices, 2)

    @property
    def backend(self) -> str:
        return "gloo" if self.on == "rig" else "nccl"

    def memory_fraction(self, case: Case) -> float:
        """The rig's memory is the host's, and its steps are slow; of a GPU each program at a time has a part."""
        return case.memory_fraction if self.on == "rig" else round(min(8 * case.memory_fraction, 0.9 / self.at_once), 3)

    def torchrun(self, python: str, script: str, *flags: str) -> list[str]:
        return [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}", script, *flags]


class Base(NamedTuple):
    """A public program, and how it is run."""

    repository: str
    """Empty: of this folder."""
    folder: str
    command: Callable[[Machine], Sequence[str]]
    own: Callable[[str], Mapping[str, Any] | None]
    steps_late: int = 1
    data: Callable[[Path], None] = lambda _: None
    needs: Sequence[str] = ()
    """Modules."""
    devices: int = 1
    alone: bool = False
    """It would take all GPUs that it sees, and cannot do so here."""


def _marked(edits: Sequence[Edit]) -> bool:
    return any("# LEAK" in edit.text for edit in edits)


def _counted(pattern: str) -> Callable[[str], Mapping[str, Any] | None]:
    """A program that prints such a line at each step."""

    def own(said: str) -> Mapping[str, Any] | None:
        return {"steps": len(re.findall(pattern, said, re.MULTILINE))}

    return own


def _nanogpt_steps(said: str) -> Mapping[str, Any] | None:
    numbers = re.findall(r"^iter (\d+):", said, re.MULTILINE)
    return {"steps": int(numbers[-1]) + 1} if numbers else None


def _words_steps(said: str) -> Mapping[str, Any] | None:
    """The first batch of an epoch prints nothing."""
    epochs = re.findall(r"^\| epoch +(\d+)", said, re.MULTILINE)
    return {"steps": len(epochs) + len(set(epochs))}


def _imagenet_steps(said: str) -> Mapping[str, Any] | None:
    numbers = [int(number) for number in re.findall(r"^Epoch: \[0\]\[ *(\d+)/", said, re.MULTILINE)]
    return {"steps": max(numbers)} if numbers else None


def _ddp_steps(said: str) -> Mapping[str, Any] | None:
    return {"steps": sum(map(int, re.findall(r"\[GPU0\] Epoch \d+ \| Batchsize: \d+ \| Steps: (\d+)", said, re.M)))}


def _last_json(said: str) -> Mapping[str, Any] | None:
    lines = [line for line in said.splitlines() if line.startswith('{"steps"')]
    return json.loads(lines[-1]) if lines else None


def _lightning_steps(said: str) -> Mapping[str, Any] | None:
    """From the progress bar, which is not printed at every step."""
    bars = [(int(a), int(b), int(c)) for a, b, c in re.findall(r"Epoch (\d+):[^\r\n]*?\| *(\d+)/(\d+) \[", said)]
    return {"steps": max(epoch * steps + at for epoch, at, steps in bars)} if bars else None


def _characters(folder: Path) -> None:
    chosen = random.Random(0)
    data = folder / "data" / "characters"
    data.mkdir(parents=True)
    for name, count in (("train", 100_000), ("val", 10_000)):
        array("H", [chosen.randrange(64) for _ in range(count)]).tofile((data / f"{name}.bin").open("wb"))
    # A pickle of {"vocab_size": 64}, the one key that is read.
    (data / "meta.pkl").write_bytes(b"\x80\x04}\x8c\nvocab_size\x94K\x40s.")


def _words(path: Path, count: int) -> None:
    chosen = random.Random(count)
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [f"w{chosen.randrange(1000)}" for _ in range(count)]
    path.write_text("\n".join(" ".join(words[at : at + 20]) for at in range(0, count, 20)) + "\n", encoding="utf-8")


def _corpus(folder: Path) -> None:
    for name, count in (("train", 140_000), ("valid", 4_000), ("test", 4_000)):
        _words(folder / "data" / "tiny" / f"{name}.txt", count)


def _wikitext(folder: Path) -> None:
    _words(folder / "data" / "wikitext-2.txt", 200_000)


def _digits(folder: Path) -> None:
    """The four idx files of MNIST, smaller."""
    raw = folder.parent / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 6_000), ("t10k", 1_000)):
        images = random.Random(count).randbytes(count * 28 * 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + images)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + bytes(count))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


NANOGPT_FLAGS = (
    "--dataset=characters", "--compile=False", "--dtype=float16", "--n_layer=4", "--n_head=4", "--n_embd=128",
    "--block_size=64", "--batch_size=8", "--gradient_accumulation_steps=4", "--eval_iters=5", "--log_interval=1",
)  # fmt: skip
NANOGPT = Base(
    "nanoGPT", "", lambda on: on.torchrun(on.place.python, "train.py", *NANOGPT_FLAGS, f"--backend={on.backend}"),
    _nanogpt_steps, data=_characters,
)  # fmt: skip
DCGAN = Base(
    "examples", "dcgan",
    lambda on: [on.place.python, "main.py", "--dataset=fake", "--accel", "--batchSize=16", "--workers=2"],
    _counted(r"^\[\d+/\d+\]\[\d+/\d+\] Loss_D"), needs=("torchvision",),
)  # fmt: skip
WORDS = Base(
    "examples", "word_language_model",
    lambda on: [
        on.place.python, "main.py", "--accel", "--data=data/tiny", "--model=Transformer", "--log-interval=1",
        "--lr=0.001",
    ],
    _words_steps, steps_late=2, data=_corpus,
)  # fmt: skip
WORDS_BY_HAND = WORDS._replace(own=lambda _: None)
"""Without a torch optimizer it has no steps."""
MNIST = Base(
    "examples", "mnist", lambda on: [on.place.python, "main.py", "--log-interval=1"], _counted("^Train Epoch"),
    data=_digits, needs=("torchvision",),
)  # fmt: skip
IMAGENET = Base(
    "examples", "imagenet",
    lambda on: [
        on.place.python, "main.py", "--dummy", "--multiprocessing-distributed", "--world-size=1", "--rank=0",
        f"--dist-url=tcp://127.0.0.1:{_free_port()}", f"--dist-backend={on.backend}", "--batch-size=4", "--workers=2",
        "--print-freq=1", "--arch=shufflenet_v2_x0_5",
    ],
    _imagenet_steps, needs=("torchvision",),
)  # fmt: skip
DDP_TUTORIAL = Base(
    "examples", "distributed/ddp-tutorial-series",
    lambda on: on.torchrun(on.place.python, "multigpu_torchrun.py"), _ddp_steps,
)  # fmt: skip
FSDP2 = Base(
    "examples", "distributed/FSDP2", lambda on: on.torchrun(on.place.python, "example.py"), lambda _: {"steps": 10},
    devices=2,
)  # fmt: skip
HUGGING_FACE = Base(
    "", "", lambda on: on.torchrun(on.trainers, "hugging_face_train.py", f"--backend={on.backend}"), _last_json,
    needs=("transformers",), devices=2,
)  # fmt: skip
LIGHTNING = Base(
    "pytorch-lightning", "examples/pytorch/basics", lambda on: [on.trainers, "transformer.py"], _lightning_steps,
    steps_late=20, data=_wikitext, needs=("lightning",), alone=True,
)  # fmt: skip

LONG = 600.0
HOOK = (
    Edit(
        "main.py", r"^criterion = ",
        """
        activations = []
        def keep_activations(module, inputs, output):
            activations.append(output.detach())
        model.register_forward_hook(keep_activations)
        """,
        how="before",
    ),
)  # fmt: skip
OF_THE_HOOK: dict[str, Any] = {
    "edits": HOOK,
    "lines": [Spot("model.py", r"F\.log_softmax\(output")],
    "callers": [Spot("main.py", r"^ +output = model\(data\)$", matches=2)],
    "holder": ("activations",),
    "causes": ("python_container", "hook"),
}
PREDICTIONS: dict[str, Any] = {
    "flags": ("--steps=100000", "--leak-rank=1"),
    "lines": [Spot("hugging_face_train.py", "# LEAK")],
    "holder": ("train_preds",),
    "causes": ("python_container", "retained_graph"),
    "ranks": frozenset({1}),
    "seconds": LONG,
}
OPTIMIZER = ("--use-optimizer",)
CASES = (
    Case("nanogpt", NANOGPT, flags=("--max_iters=600", "--eval_interval=100")),
    Case(
        "nanogpt_total_loss", NANOGPT,
        [
            Edit("train.py", r"^while True:$", "total_loss = 0.0", how="before"),
            Edit("train.py", r"^        scaler\.scale\(loss\)\.backward\(\)", "total_loss = total_loss + loss"),
        ],
        flags=("--max_iters=1000", "--eval_interval=100"), harmless=True,
    ),
    Case(
        "nanogpt_eval_logits", NANOGPT,
        [
            Edit("train.py", r"^@torch\.no_grad\(\)", "eval_logits = []", how="before"),
            Edit("train.py", r"^            losses\[k\] = loss\.item\(\)", "eval_logits.append(logits)"),
        ],
        flags=("--max_iters=1000000", "--eval_interval=20"),
        lines=[Spot("model.py", r"^            logits = self\.lm_head\(x\)")],
        callers=[Spot("train.py", r"^                logits, loss = model\(X, Y\)")],
        holder=("eval_logits",), causes=("python_container",), ranks=frozenset({0}), seconds=LONG,
    ),
    Case(
        "nanogpt_ema_copies", NANOGPT,
        [
            Edit("train.py", r"^while True:$", "ema_copies = []", how="before"),
            Edit(
                "train.py", r"^    optimizer\.zero_grad\(set_to_none=True\)",
                """
                if master_process and iter_num % 5 == 0:
                    ema_copies.append({name: one.clone() for name, one in raw_model.state_dict().items()})  # LEAK
                """,
            ),
        ],
        flags=("--max_iters=1000000", "--eval_interval=1000"),
        holder=("ema_copies",), causes=("python_container",), ranks=frozenset({0}), seconds=LONG,
    ),
    Case("dcgan", DCGAN, flags=("--niter=15",)),
    Case(
        "dcgan_images", DCGAN,
        [
            Edit("main.py", r"^for epoch in range\(opt\.niter\)", "img_list = []", how="before"),
            Edit("main.py", r"^        optimizerG\.step\(\)", "img_list.append(netG(fixed_noise))  # CALLER"),
        ],
        flags=("--niter=10000",), lines=[Spot("main.py", r"output = self\.main\(input\)", matches=2, at=0)],
        holder=("img_list",), causes=("retained_graph",), seconds=LONG, memory_fraction=0.3,
    ),
    Case(
        "dcgan_replaced_layer", DCGAN,
        [
            Edit(
                "main.py", r"^        optimizerG\.step\(\)",
                """
                if i % 20 == 19:
                    netD.main[8] = nn.Conv2d(ndf * 4, ndf * 8, 4, 2, 1, bias=False).to(device)  # LEAK
                    optimizerD.add_param_group({"params": list(netD.main[8].parameters())})
                """,
            ),
        ],
        flags=("--niter=10000",),
        lines=[
            Spot("main.py", r"^        optimizerD\.step\(\)"),
            Spot("main.py", r"^        errD_(real|fake)\.backward\(\)", matches=2),
        ],
        holder=("optimizerD", "Adam."), causes=("optimizer_rebuilt", "python_container"), seconds=LONG,
        memory_fraction=0.1,
    ),
    Case("words", WORDS, flags=(*OPTIMIZER, "--epochs=10")),
    Case("words_no_optimizer", WORDS_BY_HAND, flags=("--epochs=100000",), seconds=420),
    Case("words_hook", WORDS, flags=(*OPTIMIZER, "--epochs=100000"), seconds=LONG, memory_fraction=0.1, **OF_THE_HOOK),
    Case(
        "words_hook_no_optimizer", WORDS_BY_HAND,
        flags=("--epochs=100000", "--bptt=8", "--batch_size=4", "--emsize=800", "--nlayers=4"), seconds=900,
        **OF_THE_HOOK,
    ),
    Case(
        "words_cache_by_tensor", WORDS,
        [
            Edit("main.py", r"^def get_batch\(", "masks = {}", how="before"),
            Edit(
                "main.py", r"^    data = source\[i:i\+seq_len\]",
                """
                if data not in masks:
                    masks[data] = torch.zeros(len(data), 20, 500, device=device)  # LEAK
                """,
            ),
        ],
        flags=(*OPTIMIZER, "--epochs=100000"), holder=("masks",), causes=("python_container",), seconds=LONG,
    ),
    Case(
        "words_gradient_hooks", WORDS,
        [
            Edit(
                "main.py", r"^        loss\.backward\(\)",
                "model.decoder.weight.register_hook(lambda grad, seen=output: None)", how="before",
            ),
        ],
        flags=(*OPTIMIZER, "--epochs=100000"), lines=OF_THE_HOOK["lines"], callers=OF_THE_HOOK["callers"],
        holder=("_backward_hooks", "lambda", "hook"), causes=("hook", "retained_graph"), seconds=LONG,
        memory_fraction=0.1,
    ),
    Case("mnist", MNIST, flags=("--epochs=10",)),
    Case(
        "mnist_gradients", MNIST,
        [
            Edit("main.py", r"^def train\(", "gradients = []", how="before"),
            Edit(
                "main.py", r"^        loss\.backward\(\)",
                """
                if batch_idx % 10 == 0:
                    gradients.append([one.grad.clone() for one in model.parameters()])  # LEAK
                """,
            ),
        ],
        flags=("--epochs=100000",), holder=("gradients",), causes=("python_container",), seconds=LONG,
    ),
    Case(
        "mnist_worker_cache", MNIST,
        [
            Edit(
                "main.py", r"^def train\(",
                """
                class MNIST(datasets.MNIST):
                    cache = []

                    def __getitem__(self, index):
                        image, target = super().__getitem__(index)
                        self.cache.append(image)
                        return image, target

                """,
                how="before",
            ),
            Edit("main.py", r"dataset1 = datasets\.MNIST\(", "dataset1 = MNIST(", how="swap"),
        ],
        flags=("--epochs=100000",), host_process="worker", seconds=900,
    ),
    Case("imagenet", IMAGENET, seconds=300),
    Case(
        "imagenet_losses", IMAGENET,
        [Edit("main.py", r"losses\.update\(loss\.item\(\), ", "losses.update(loss, ", how="swap", matches=2)],
        host_process=OWN_PROCESS, seconds=1500,
    ),
    Case("ddp_tutorial", DDP_TUTORIAL, flags=("60", "10")),
    Case("fsdp2", FSDP2),
    Case(
        "fsdp2_full_tensors", FSDP2._replace(own=lambda _: None),
        [
            Edit("example.py", r"for _ in range\(10\):", "for _ in range(100000):", how="swap"),
            Edit("example.py", r"^    optim = ", "history = []", how="before"),
            Edit(
                "example.py", r"^        optim\.step\(\)",
                "history.append([one.full_tensor().detach() for one in model.parameters()])  # LEAK",
            ),
        ],
        holder=("history",), causes=("python_container",), seconds=LONG, memory_fraction=0.01,
    ),
    Case("trainer", HUGGING_FACE, flags=("--steps=600",)),
    Case("trainer_predictions", HUGGING_FACE, **PREDICTIONS),
    Case("trainer_predictions_target", HUGGING_FACE, libraries="target", **PREDICTIONS),
    Case("trainer_predictions_checkout", HUGGING_FACE, libraries="checkout", **PREDICTIONS),
    Case("lightning", LIGHTNING, seconds=120),
    Case(
        "lightning_outputs", LIGHTNING,
        [
            Edit("transformer.py", r"^        self\.model = Transformer\(", "self.training_step_outputs = []"),
            Edit(
                "transformer.py", r"^        loss = F\.nll_loss", "self.training_step_outputs.append(output)",
                matches=3, at=0,
            ),
        ],
        lines=[Spot("transformer.py", r"output = self\.model\(input, target\)", matches=3, at=0)],
        holder=("training_step_outputs",), causes=("python_container", "retained_graph"), seconds=LONG,
        memory_fraction=0.1,
    ),
)  # fmt: skip


def bring(name: str, sources: Path | None, into: Path) -> None:
    """A repository's files at its commit, with the commit's name beside them."""
    one = REPOSITORIES[name]
    given = [] if sources is None else [sources / name, sources / f"{name}.git"]
    here = next((path for path in given if path.exists()), None)
    if here is not None and (here / COMMIT).is_file():
        said = (here / COMMIT).read_text(encoding="utf-8").strip()
        if said != one.commit:
            raise SystemExit(f"{here} is of commit {said}, not of {one.commit}")
        shutil.copytree(here, into)
        return
    into.mkdir(parents=True)
    if here is None:
        here = into / ".fetched"
        _git("init", "--quiet", "--bare", str(here))
        _git("-C", str(here), "fetch", "--quiet", "--depth=1", one.url, one.commit)
    packed = _git("-C", str(here.resolve()), "archive", one.commit, *one.paths)
    subprocess.run(["tar", "-x", "-C", str(into)], input=packed, check=True)
    shutil.rmtree(into / ".fetched", ignore_errors=True)
    (into / COMMIT).write_text(one.commit + "\n", encoding="utf-8")


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)} failed")
    return done.stdout


def edit(folder: Path, one: Edit) -> None:
    path = folder / one.file
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [at for at, line in enumerate(lines) if re.search(one.anchor, line)]
    if len(found) != one.matches:
        raise SystemExit(f"{one.file}: {one.anchor!r} matches {len(found)} lines, not {one.matches}")
    at = found[one.at]
    if one.how == "swap":
        lines[at] = re.sub(one.anchor, one.text, lines[at])
    else:
        indent = re.match(r"\s*", lines[at])[0]  # type: ignore[index] # SAFETY: it matches every line
        text = textwrap.indent(textwrap.dedent(one.text).strip("\n"), indent).splitlines()
        at += one.how == "after"
        lines[at:at] = text
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def places_of(folder: Path, spots: Sequence[Spot], mark: str) -> frozenset[str]:
    """Those lines, and all that are marked so, as ``file.py:7``."""
    places = set()
    for spot in spots:
        found = _lines_with(folder / spot.file, spot.pattern)
        if len(found) != spot.matches:
            raise SystemExit(f"{spot.file}: {spot.pattern!r} matches {len(found)} lines, not {spot.matches}")
        places |= {f"{spot.file}:{at}" for at in (found if spot.at is None else [found[spot.at]])}
    for path in folder.glob("*.py"):
        places |= {f"{path.name}:{at}" for at in _lines_with(path, f"# {mark}\\b")}
    return frozenset(places)


def _lines_with(path: Path, pattern: str) -> list[int]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [at for at, line in enumerate(lines, 1) if re.search(pattern, line)]


def prepare(case: Case, machine: Machine, sources: Path, scratch: Path) -> Program:
    """The program in a folder of its own, with its leak and data."""
    folder = scratch / "projects" / case.name / (Path(case.base.folder).name or "project")
    if case.base.repository:
        shutil.copytree(sources / case.base.repository / case.base.folder, folder)
    else:
        folder.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("hugging_face_train.py"), folder)
    for one in case.edits:
        edit(folder, one)
    case.base.data(folder)
    truth = Truth(
        case.name, case.healthy, places_of(folder, case.lines, "LEAK"), places_of(folder, case.callers, "CALLER"),
        case.holder, case.causes, case.ranks, case.host_process,
    )  # fmt: skip
    paths = [path for path in machine.place.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if case.libraries:
        paths.insert(0, str(libraries_of(case.libraries, machine, scratch)))
    environ = {**machine.place.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    devices = environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(machine.devices)))
    environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices.split(",")[: 1 if case.base.alone else machine.ranks])
    return Program(
        truth, [*case.base.command(machine), *case.flags], folder, environ, case.base.own,
        0 if case.seconds is None else case.base.steps_late, machine.memory_fraction(case), case.seconds,
    )  # fmt: skip


def libraries_of(how: str, machine: Machine, scratch: Path) -> Path:
    """The trainers' libraries outside ``site-packages``: as of ``pip install --target``, or as source checkouts."""
    question = (
        "import importlib.util as u, sys; print(*[u.find_spec(n).submodule_search_locations[0] for n in sys.argv[1:]])"
    )
    command = [machine.trainers, "-c", question, *TRAINER_PACKAGES]
    found = subprocess.run(command, env=dict(machine.place.environ), stdout=subprocess.PIPE, check=True, text=True)
    into = scratch / how / ("libraries" if how == "target" else "src")
    if into.exists():
        return into
    for package in map(Path, found.stdout.split()):
        shutil.copytree(package, into / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        for about in package.parent.glob(f"{package.name}-*.dist-info") if how == "target" else ():
            shutil.copytree(about, into / about.name)
    if how == "checkout":
        (into.parent / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    return into


def machine_on(where: str, scratch: Path, at_once: int) -> Machine:
    place = place_on(where)
    trainers = place.python
    paths = [path for path in place.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if where == "rig":
        trainers = str(ROOT / ".trainers" / "venv" / "bin" / "python")
        gloo = scratch / "gloo"
        gloo.mkdir(exist_ok=True)
        (gloo / "sitecustomize.py").write_text(ON_GLOO, encoding="utf-8")
        paths += [str(gloo), str(_torchvision(scratch))]
        place = place._replace(environ={**place.environ, "PYTHONPATH": os.pathsep.join(paths)})
    question = """
import importlib.util, sys, torch
print(torch.cuda.device_count(), *[name for name in sys.argv[1:] if importlib.util.find_spec(name)])
"""
    said = [
        subprocess.run(
            [python, "-c", question, "torchvision", "transformers", "lightning"],
            env=dict(place.environ), stdout=subprocess.PIPE, check=False, text=True,
        ).stdout.split()
        for python in dict.fromkeys((place.python, trainers))
    ]  # fmt: skip
    if not said[0]:
        raise SystemExit(f"{place.python} has no torch")
    has = frozenset(name for one in said for name in one[1:])
    return Machine(place, trainers, where, int(said[0][0]), has, at_once)


def _torchvision(scratch: Path) -> Path:
    """That of the laptop's environment, which is of the same release as the rig's torch."""
    folder = scratch / "torchvision" / "site-packages"
    folder.mkdir(parents=True, exist_ok=True)
    for packages in (ROOT / ".estimate" / "venv" / "lib").glob("python*/site-packages"):
        for pattern in ("torchvision*", "PIL", "pillow*"):
            for path in packages.glob(pattern):
                if not (folder / path.name).exists():
                    (folder / path.name).symlink_to(path)
    return folder


def chosen(args: argparse.Namespace) -> list[Case]:
    """Those that may take longest first, so that the last one does not run alone."""
    cases = [one for one in CASES if args.only is None or re.search("|".join(args.only), one.name)]
    return sorted(cases, key=lambda one: -(one.seconds or 0))


def programs_of(args: argparse.Namespace, scratch: Path) -> list[Program]:
    machine = machine_on(args.on, scratch, args.at_once)
    sources = scratch / "sources"
    programs = []
    for case in chosen(args):
        lacks = [name for name in case.base.needs if name not in machine.has]
        if lacks or machine.devices < case.base.devices:
            why = ", ".join(lacks) or f"{case.base.devices} GPUs"
            print(f"not run, it needs {why}: {case.name}", file=sys.stderr)
            continue
        if case.base.repository and not (sources / case.base.repository).exists():
            bring(case.base.repository, args.sources, sources / case.base.repository)
        programs.append(prepare(case, machine, sources, scratch))
    return programs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="folder for public_programs.json and the programs' output")
    parser.add_argument("--sources", type=Path, metavar="DIR", help="where the repositories lie (default: GitHub)")
    parser.add_argument("--carry", type=Path, metavar="DIR", help="only bring the sources into this folder")
    parser.add_argument("--on", choices=("rig", "gpu"), default="rig")
    parser.add_argument("--only", nargs="+", metavar="WORD", help="programs whose names contain one of these")
    parser.add_argument("--at-once", type=int, default=2, help="programs at a time (default 2)")
    parser.add_argument("--minutes", type=float, default=90.0, help="of the whole run; what is left then is ended")
    args = parser.parse_args()
    if args.carry is not None:
        for name in REPOSITORIES:
            bring(name, args.sources, args.carry / name)
        return 0
    if args.out is None:
        parser.error("OUT is needed")
    about = {"on": args.on, "commits": {name: one.commit for name, one in REPOSITORIES.items()}}

    def keep(results: Sequence[Result]) -> None:
        write(args.out / "public_programs.json", about, results)

    with scratch_on(args.on, None, devices=2) as scratch:
        began_s = time.monotonic()
        args.out.mkdir(parents=True, exist_ok=True)
        results = run_all(
            programs_of(args, scratch), scratch,
            at_once=args.at_once, minutes=args.minutes, until="incident", each=keep,
        )  # fmt: skip
        copy_logs(scratch, args.out)
    counts = summary_of(results)
    print(table_of(results))
    print(", ".join(f"{count} {word}" for word, count in counts.items()), f"in {time.monotonic() - began_s:.0f} s")
    return 1 if any(counts[word] for word in (SIN, WRONG, ALARM, FAILED)) else 0


if __name__ == "__main__":
    sys.exit(main())
