"""Training runs that leak GPU memory, each in its own way: python leak_zoo.py NAME [--steps N].

The model is a small transformer on a CUDA device, real or fake (on the rig the values are garbage). Each prints one
JSON line with the truth before it begins: ``name``, ``line`` (it allocates what is kept; ``null``: all of ``forward``),
``holder``: words that the path to the holder must contain, and ``kind`` (``core.evidence.rank_evidence.HolderKind``).
"""

from __future__ import annotations

import argparse
import contextvars
import functools
import gc
import inspect
import json
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch

WIDTH, LAYERS, BATCH, LENGTH = 128, 2, 8, 64


class Block(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where mypy runs
    """Attention and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before = torch.nn.LayerNorm(WIDTH)
        self.mix = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.between = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(self.before(hidden)).chunk(3, dim=-1)
        hidden = hidden + (query @ key.transpose(1, 2)).softmax(-1) @ value
        return hidden + self.down(torch.nn.functional.gelu(self.up(self.between(hidden))))


class Model(torch.nn.Module):  # type: ignore[misc]  # as above
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            batch = layer(batch)
        return batch


class Run:
    """Steps of one training run: iterate over it, and train in each."""

    def __init__(self, steps: int, on_step: Optional[Callable[[int], None]] = None) -> None:
        """``on_step`` is called after each step, from 1 on, while all that the run keeps is alive."""
        torch.backends.cudnn.enabled = False
        self.steps = steps
        self.on_step = on_step
        self.model = Model().cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def __iter__(self) -> Iterator[torch.Tensor]:
        for step in range(1, self.steps + 1):
            yield torch.zeros(BATCH, LENGTH, WIDTH, device="cuda")
            if self.on_step is not None:
                self.on_step(step)

    def train(self, batch: torch.Tensor) -> torch.Tensor:
        """One step; what came out of the model, without its graph."""
        out = self.model(batch)
        out.square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return out.detach()


class Truth(NamedTuple):
    """What should be said of a leak."""

    run: Callable[[Run], None]
    kind: str
    holder: tuple[str, ...]

    @property
    def line(self) -> Optional[int]:
        """Where ``# allocates`` stands."""
        lines, first = inspect.getsourcelines(inspect.unwrap(self.run))
        return next((first + number for number, line in enumerate(lines) if "# allocates" in line), None)


ZOO: dict[str, Truth] = {}


def leak(kind: str, *holder: str) -> Callable[[Callable[[Run], None]], Callable[[Run], None]]:
    """Put a run into the zoo, by its name."""

    def put(run: Callable[[Run], None]) -> Callable[[Run], None]:
        ZOO[run.__name__] = Truth(run, kind, holder)
        return run

    return put


@leak("container", "leak_zoo.py", "outputs_list()", "outputs (list, ", "Tensor[8,64,128] float32")
def outputs_list(run: Run) -> None:
    """Outputs kept in a list."""
    outputs = []
    for batch in run:
        run.train(batch)
        outputs.append(batch + 1)  # allocates


@leak("container", "views (list, ", "a view of a 256.0 KiB storage")
def outputs_kept(run: Run) -> None:
    """Small views, each of which keeps a whole storage."""
    views = []
    for batch in run:
        whole = run.train(batch) * 2  # allocates
        views.append(whole[0, 0])


@leak("container", "samples (list, ", "Tensor[2,64,128] float32")
def sample_beside_lengths(run: Run) -> None:
    """A part of each batch kept, beside a local whose length changes from step to step."""
    samples = []
    for step, batch in enumerate(run):
        _ = torch.zeros(BATCH, LENGTH * (1 + step * 7 % 11), WIDTH, device="cuda")
        run.train(batch)
        samples.append(batch[:2] + 1)  # allocates


@leak("native", "no Python object found refers to")
def autocast_cache(run: Run) -> None:
    """Weights that are new in each step, inside one ``torch.autocast``, which keeps its copies, and with them these."""
    with torch.autocast("cuda", dtype=torch.bfloat16):
        for batch in run:
            weight = torch.nn.Parameter(torch.zeros(4 * WIDTH, WIDTH, device="cuda"))  # allocates
            torch.nn.functional.linear(batch, weight)
            run.train(batch)


@leak("native", "no Python object found refers to")
def ddp_buckets(run: Run) -> None:
    """A model that is wrapped again in each step, every wrapper kept."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    wrappers = []
    for batch in run:
        wrappers.append(torch.nn.parallel.DistributedDataParallel(run.model))  # allocates
        run.train(batch)


@leak("container", "by_step (dict, ")
def dict_by_step(run: Run) -> None:
    """A dict that is never emptied."""
    by_step = {}
    for step, batch in enumerate(run):
        by_step[step] = {"out": run.train(batch) * 2, "step": step}  # allocates


@leak("autograd", "losses (list, ", "grad_fn MeanBackward0", "nodes each")
def graphs_in_list(run: Run) -> None:
    """Losses kept with their graphs, as in an evaluation without no_grad."""
    losses = []
    for batch in run:
        run.train(batch)
        losses.append(run.model(batch).square().mean())


@leak("autograd", "average", "grad_fn LerpBackward0")
def saved_inputs(run: Run) -> None:
    """An average that keeps the graph of every step, whose layer saved an input without a gradient."""
    probe = torch.nn.Linear(128, 16).cuda()
    average = torch.zeros((), device="cuda")
    for batch in run:
        features = run.train(batch).detach()
        average = average.lerp(probe(features * 2).square().mean(), 0.05)  # allocates


@leak("autograd", "total", "grad_fn AddBackward0")
def total_loss(run: Run) -> None:
    """A sum that keeps the graphs of all its terms."""
    total: Any = 0
    for batch in run:
        run.train(batch)
        total = total + run.model(batch).square().mean()


@leak("autograd", "kept (list, ", "grad_fn")
def retain_graph(run: Run) -> None:
    """Graphs that backward was told to retain."""
    kept = []
    for batch in run:
        loss = run.model(batch).square().mean()
        loss.backward(retain_graph=True)
        run.optimizer.step()
        run.optimizer.zero_grad()
        kept.append(loss)


@leak("closure", "closure's kept (list, ")
def closure(run: Run) -> None:
    """A variable that only an inner function knows."""

    def make() -> Callable[[torch.Tensor], None]:
        kept = []

        def remember(tensor: torch.Tensor) -> None:
            kept.append(tensor * 2)  # allocates

        return remember

    remember = make()
    for batch in run:
        remember(run.train(batch))


@leak("hook", "forward hook", "Model.layers.1", "features (list, ")
def forward_hook(run: Run) -> None:
    """A forward hook that stores what it sees."""

    def hook_for() -> Callable[..., None]:
        features = []

        def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
            features.append(output.detach() * 2)  # allocates

        return hook

    run.model.layers[1].register_forward_hook(hook_for())
    for batch in run:
        run.train(batch)


@leak("hook", "features (list, ")
def forward_hook_with_name(run: Run) -> None:
    """The same, into a list that has a name as well."""
    features = []

    def hook(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> None:
        features.append(output.detach() * 2)  # allocates

    run.model.layers[1].register_forward_hook(hook)
    for batch in run:
        run.train(batch)


@leak("hook", "tensor hook", "kept (list, ")
def tensor_hook(run: Run) -> None:
    """A hook of a parameter that stores gradients."""

    def hook_for() -> Callable[[torch.Tensor], None]:
        kept = []

        def hook(gradient: torch.Tensor) -> None:
            kept.append(gradient * 2)  # allocates

        return hook

    run.model.layers[0].up.weight.register_hook(hook_for())
    for batch in run:
        run.train(batch)


@leak("exception", "errors (list, ", "ValueError -> traceback -> ", " in failing()")
def kept_exception(run: Run) -> None:
    """Exceptions kept with the frames that raised them."""

    def failing(batch: torch.Tensor) -> None:
        activation = batch * 2  # allocates
        raise ValueError(f"no good batch of {activation.dim()} dimensions")

    errors = []
    for batch in run:
        try:
            failing(run.train(batch))
        except ValueError as error:  # noqa: PERF203  # that is how jobs do it
            errors.append(error)


@leak("cycle", " in failing()", "Tensor[8,64,128] float32")
def exception_cycle(run: Run) -> None:
    """A local variable for an exception: it holds the frame that holds it."""

    def failing(batch: torch.Tensor) -> None:
        activation = batch * 2  # allocates
        try:
            raise ValueError(f"no good batch of {activation.dim()} dimensions")
        except ValueError as error:
            kept = error
            str(kept)

    gc.disable()
    for batch in run:
        failing(run.train(batch))


class Node:
    """Part of a tree that knows its parent."""

    def __init__(self, parent: Optional[Node], activation: Optional[torch.Tensor] = None) -> None:
        self.parent = parent
        self.activation = activation
        self.children: list[Node] = []
        if parent is not None:
            parent.children.append(self)


@leak("cycle", "Node.activation", "Tensor[8,64,128] float32")
def cycle(run: Run) -> None:
    """Reference cycles while nobody collects them."""
    gc.disable()
    for batch in run:
        Node(Node(None), run.train(batch) * 2)  # allocates


@leak("autograd", "Node.activation", "grad_fn")
def cycle_with_graph(run: Run) -> None:
    """Cycles that hold a graph: what it saved is seen from C++ alone."""
    gc.disable()
    for batch in run:
        run.train(batch)
        Node(Node(None), run.model(batch).square().mean())


class Registry:
    """Keeps what it is given, for all instances."""

    seen: list[torch.Tensor] = []  # noqa: RUF012  # that is the mistake


@leak("container", "Registry.seen (list, ")
def class_attribute(run: Run) -> None:
    """A mutable attribute of a class."""
    for batch in run:
        Registry.seen.append(run.train(batch) * 2)  # allocates


@leak("container", "lru_cache of positions, ", " answers -> ")
def lru_cache(run: Run) -> None:
    """A cache whose keys never come again."""

    @functools.lru_cache(maxsize=100_000)
    def positions(step: int) -> torch.Tensor:
        return torch.zeros(BATCH, LENGTH, WIDTH, device="cuda")  # allocates

    for step, batch in enumerate(run):
        run.train(batch + positions(step))


@dataclass
class Trainer:
    """Keeps a history."""

    run: Run
    history: deque[tuple[int, torch.Tensor]] = field(default_factory=deque)

    def fit(self) -> None:
        for step, batch in enumerate(self.run):
            self.history.append((step, self.run.train(batch) * 2))  # allocates


@leak("container", "Trainer.history (deque, ")
def trainers_deque(run: Run) -> None:
    """A deque without a bound, in an object."""
    Trainer(run).fit()


trainers_deque.__wrapped__ = Trainer.fit  # type: ignore[attr-defined]  # where the line is looked for


@leak("thread", "collected (list, ", "in thread collector", "collect()")
def other_thread(run: Run) -> None:
    """A local variable of another thread."""
    handed: queue.Queue[Optional[torch.Tensor]] = queue.Queue()
    taken = threading.Semaphore(0)

    def collect() -> None:
        collected = []
        while (tensor := handed.get()) is not None:
            collected.append(tensor * 2)  # allocates
            del tensor
            taken.release()

    collector = threading.Thread(target=collect, name="collector")
    collector.start()
    try:
        for batch in run:
            handed.put(run.train(batch))
            taken.acquire()
    finally:
        handed.put(None)
        collector.join()


@leak("container", "seen in averages()", "(list, ")
def generator(run: Run) -> None:
    """A generator that remembers all that it was sent."""

    def averages() -> Generator[int, torch.Tensor, None]:
        seen: list[torch.Tensor] = []
        while True:
            tensor = yield len(seen)
            seen.append(tensor * 2)  # allocates

    running = averages()
    next(running)
    for batch in run:
        running.send(run.train(batch))


@leak("optimizer", "old (list, ", "AdamW.state")
def optimizer_rebuilt(run: Run) -> None:
    """A new optimizer every few steps, the old ones kept."""
    old = []
    for step, batch in enumerate(run):
        if step % 2 == 0:
            old.append(run.optimizer)
            run.optimizer = torch.optim.AdamW(run.model.parameters())
        run.train(batch)


class Doubled(torch.autograd.Function):  # type: ignore[misc]  # as above
    """Keeps more for backward than it needs, beside ``save_for_backward``."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.scratch = tensor.detach() * 3  # allocates
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2 + ctx.scratch


@leak("autograd", "kept (list, ", "DoubledBackward.scratch")
def function_context(run: Run) -> None:
    """Attributes of ``ctx`` in a graph that is kept."""
    weight = torch.zeros(BATCH, LENGTH, WIDTH, device="cuda", requires_grad=True)
    kept = []
    for batch in run:
        run.train(batch)
        kept.append(Doubled.apply(weight).sum())


function_context.__wrapped__ = Doubled.forward  # type: ignore[attr-defined]  # where the line is looked for


@leak("attribute", "Model.seen", "Tensor[")
def buffer_grows(run: Run) -> None:
    """A buffer that is made longer at each step."""
    run.model.register_buffer("seen", torch.zeros(1, LENGTH, WIDTH, device="cuda"))
    for batch in run:
        run.train(batch)
        run.model.seen = torch.cat([run.model.seen, batch])  # allocates


@leak("container", "Queue.queue (deque, ")
def full_queue(run: Run) -> None:
    """A queue that nobody takes from."""
    results: queue.Queue[torch.Tensor] = queue.Queue()
    for batch in run:
        results.put(run.train(batch) * 2)  # allocates


@leak("container", "storage", "['kept'] (list, ")
def thread_local(run: Run) -> None:
    """A thread's own storage."""
    storage = threading.local()
    storage.kept = []
    for batch in run:
        storage.kept.append(run.train(batch) * 2)  # allocates


@leak("container", "Context -> ContextVar kept (list, ")
def context_variable(run: Run) -> None:
    """A value of the thread's context."""
    contextvars.ContextVar[list[torch.Tensor]]("kept").set([])
    for batch in run:
        (kept,) = (value for variable, value in contextvars.copy_context().items() if variable.name == "kept")
        kept.append(run.train(batch) * 2)  # allocates
        del kept


@leak("container", "Hidden.kept (list, ")
def library_state(run: Run) -> None:
    """Kept by a library's module, whose names are not the first to be looked at."""
    import logging

    class Hidden(logging.Handler):
        def __init__(self) -> None:
            super().__init__()
            self.kept: list[Any] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.kept.append(record.args)

    logging.getLogger("zoo").addHandler(Hidden())
    for batch in run:
        logging.getLogger("zoo").warning("%s", run.train(batch) * 2)  # allocates


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ZOO)
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    truth = ZOO[args.name]
    said = {"name": args.name, "line": truth.line, "holder": truth.holder, "kind": truth.kind}
    print(json.dumps(said), flush=True)
    truth.run(Run(args.steps))


if __name__ == "__main__":
    main()
