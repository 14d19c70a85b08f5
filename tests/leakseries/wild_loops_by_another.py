"""Training and serving loops below a cap, written by another author than the detector and wild_loops.py.

The author was a language model that knew the names of the other loops and the interface of `CappedBench`, and had not
read the detector. A loop whose name begins with `leak_` keeps memory that it never uses again, until PyTorch's
allocator raises `OutOfMemoryError`: between steps 150 and 750 by design. What the others hold is bounded by design: it
fills, saws, follows a load or shrinks, and fits below the cap. Sizes are fitted to the cap; the constructs are
PyTorch's own. `bench/gpu_recordings.py --wild wild_loops_by_another` records them. All but `NEED_KERNELS` run on the
rig, too.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from leakseries.rig_loops import DEVICE
from leakseries.wild_loops import MIB, CappedBench, Loop

WIDTH = 512
ROW = 4 * WIDTH
FRAME = 4 * 84 * 84
"""Bytes of an observation: four grey images."""


def _rows(size: float) -> Any:
    """Features of as many samples as make `size` bytes."""
    return torch.randn(max(int(size / ROW), 1), WIDTH, device=DEVICE)


def _stack(size: float, width: int = 1024) -> Any:
    """Linear layers whose parameters take `size` bytes."""
    count = max(round(size / (4 * width * (width + 1))), 2)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()) for _ in range(count)]
    return torch.nn.Sequential(*layers).to(DEVICE)


def _fit(net: Any, optimizer: Any, width: int = 1024, batch: int = 64) -> None:
    net(torch.randn(batch, width, device=DEVICE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _paced(
    bench: CappedBench,
    once: Callable[[], object],
    held: Callable[[], int] = torch.cuda.memory_allocated,
) -> Callable[[int], None]:
    """Calls `once`, which leaks, as often as holds a unit more each step."""
    once()
    begin = held()

    def each(step: int) -> None:
        for _ in range(40):
            if held() - begin >= 1.12 * bench.unit * (step + 1):
                return
            once()

    return each


# --------------------------------------------------------------------------- leaks


def leak_smoothed_loss(bench: CappedBench) -> Iterator[object]:
    """A second loss that is only shown, smoothed together with its graph."""
    smooth = torch.zeros((), device=DEVICE)

    def once() -> None:
        nonlocal smooth
        smooth = 0.98 * smooth + 0.02 * bench.net(bench.inputs(1, 16)).logsumexp(-1).mean()

    return bench.run(_paced(bench, once))


def leak_hooks_each_epoch(bench: CappedBench) -> Iterator[object]:
    """Each epoch's evaluation registers its hooks again; only the newest list is cleared, the older ones go on."""
    layers = list(bench.net)[1:-1]
    period = max(bench.life // bench.draw.randint(9, 14), 8)
    width = layers[0].linear1.in_features
    batches = max(round(period * bench.unit / (len(layers) * bench.batch * bench.length * width * 4)), 1)
    bench.onset = 2 * period - 1

    def each(step: int) -> None:
        if step % period != period - 1:
            return
        features: list[Any] = []

        def save(layer: Any, _inputs: Any, output: Any) -> None:
            if not layer.training:
                features.append(output)

        for layer in layers:
            layer.register_forward_hook(save)
        bench.net.eval()
        with torch.no_grad():
            for _ in range(batches):
                bench.net(bench.inputs(bench.batch, bench.length))
        bench.net.train()
        features.clear()

    return bench.run(each)


def leak_epoch_outputs(bench: CappedBench) -> Iterator[object]:
    """The outputs of every validation are kept for the last report."""
    period = max(bench.life // bench.draw.randint(8, 13), 8)
    outputs = bench.batch * bench.length * 2000 * 4
    bench.onset = period - 1

    def each(step: int) -> None:
        if step % period == period - 1:
            with torch.no_grad():
                for _ in range(max(round(period * bench.unit / outputs), 1)):
                    bench.kept.append(bench.net(bench.inputs(bench.batch, bench.length)))

    return bench.run(each)


def leak_graphs_of_new_shapes(bench: CappedBench) -> Iterator[object]:
    """A CUDA graph, with a pool of its own, for every shape of a request; none is ever dropped."""
    capture = _captures(bench)
    bench.kept.append(capture)

    def once() -> None:
        capture(bench.draw.randint(1, bench.batch), bench.draw.randint(8, 2 * bench.length))

    return bench.run(_paced(bench, once, torch.cuda.memory_reserved))


def _captures(bench: CappedBench) -> Callable[[int, int], None]:
    """Captures the model for a shape that is new, and replays the others."""
    torch.backends.mha.set_fastpath_enabled(False)
    net, graphs = copy.deepcopy(bench.net).eval(), {}
    side = torch.cuda.Stream()

    def capture(batch: int, length: int) -> None:
        if (batch, length) not in graphs:
            tokens = bench.inputs(batch, length)
            side.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(side):
                net(tokens)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.no_grad(), torch.cuda.graph(graph):
                answers = net(tokens)
            graphs[batch, length] = (graph, tokens, answers)
        graphs[batch, length][0].replay()

    return capture


def leak_abandoned_sessions(bench: CappedBench) -> Iterator[object]:
    """Key-value caches of a chat server: a client that hangs up leaves its session behind."""
    sessions: list[dict[str, Any]] = []
    tokens = max(bench.unit // 2 // (8 * 2 * WIDTH * 2), 1)

    def each(step: int) -> None:
        if step % 2 == 0:
            empty = torch.empty(8, 2, 8, 0, 64, dtype=torch.half, device=DEVICE)
            sessions.append({"cache": empty, "left": bench.draw.randint(4, 12), "hangs_up": bench.draw.random() < 0.45})
        for session in sessions:
            if session["left"] > 0:
                new = torch.randn(8, 2, 8, tokens, 64, dtype=torch.half, device=DEVICE)
                session["cache"] = torch.cat((session["cache"], new), dim=3)
                session["left"] -= 1
        sessions[:] = [session for session in sessions if session["left"] > 0 or session["hangs_up"]]

    bench.kept.append(sessions)
    return bench.run(each)


def leak_results_of_trials(bench: CappedBench) -> Iterator[object]:
    """A search over hyperparameters whose results hold each trial's model and optimizer."""
    period = max(bench.life // bench.draw.randint(9, 16), 6)
    results: list[tuple[float, Any, Any]] = []

    def train() -> None:
        _fit(*results[-1][1:], width=WIDTH)
        bench.train()

    def each(step: int) -> None:
        if step % period == 0:
            net = _stack(period * bench.unit / 3, WIDTH)
            results.append((0.1**step, net, torch.optim.AdamW(net.parameters(), lr=bench.draw.uniform(1e-4, 1e-2))))

    return bench.run(each, train)


def leak_failed_futures(bench: CappedBench) -> Iterator[object]:
    """Scores are worked out by a thread; the future of one that failed holds the frames that failed."""
    pool = ThreadPoolExecutor(1)
    futures: list[Future[Any]] = []

    def score(step: int) -> Any:
        features = [_rows(0.45 * MIB) for _ in range(int(3 * bench.unit / (0.45 * MIB)))]
        if step % 3 == 1:
            raise ValueError(f"{len(features)} features without a label")
        return features[0][:8].norm(dim=1).tolist()

    def each(step: int) -> None:
        futures.append(pool.submit(score, step))
        error = futures[-1].exception()
        if isinstance(error, torch.OutOfMemoryError):
            raise error

    return bench.run(each)


class _Swish(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, inputs: Any) -> Any:
        ctx.inputs, ctx.outputs = inputs, inputs * torch.sigmoid(inputs)  # a cycle: outputs, their function, outputs
        return ctx.outputs

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gate = torch.sigmoid(ctx.inputs)
        return gradient * (ctx.outputs + gate * (1 - ctx.outputs))


def leak_function_cycles(bench: CappedBench) -> Iterator[object]:
    """A function of one's own keeps its outputs on `ctx`, in a job that has switched off the garbage collector."""
    gc.disable()

    def once() -> None:
        _Swish.apply(_rows(MIB / 3).requires_grad_()).mean().backward()

    return bench.run(_paced(bench, once))


def leak_autocast_adapters(bench: CappedBench) -> Iterator[object]:
    """Autocast around the whole run: its cache keeps a cast of the weights of each task of a meta-learner."""
    autocast = torch.autocast("cuda", dtype=torch.bfloat16)
    autocast.__enter__()
    bench.kept.append(autocast)
    base = torch.randn(WIDTH, WIDTH, device=DEVICE)

    def once() -> None:
        fast = base.clone().requires_grad_()
        (gradient,) = torch.autograd.grad((_rows(32 * ROW) @ fast).float().square().mean(), fast)
        base.sub_(1e-3 * gradient)

    def train() -> object:
        with torch.autocast("cuda", enabled=False):
            return bench.train()

    return bench.run(_paced(bench, once), train)


def leak_replay_without_a_bound(bench: CappedBench) -> Iterator[object]:
    """Off-policy learning from frames, with a list where a ring was meant."""
    episodes: list[list[Any]] = [[]]
    policy = torch.nn.Linear(FRAME, 18).to(DEVICE)
    environments = max(bench.unit // FRAME, 1)

    def each(_step: int) -> None:
        if bench.draw.random() < 0.03:
            episodes.append([])
        episodes[-1].append(torch.randint(0, 256, (environments, 4, 84, 84), dtype=torch.uint8, device=DEVICE))

    def train() -> None:
        episode = bench.draw.choice([episode for episode in episodes if episode])
        frames = bench.draw.choice(episode)[:64].flatten(1).float() / 255
        policy(frames).max(dim=1).values.mean().backward()
        policy.zero_grad(set_to_none=True)
        bench.train()

    return bench.run(each, train)


def leak_retained_graphs(bench: CappedBench) -> Iterator[object]:
    """Losses of several tasks, each differentiated with `retain_graph`, in a list for the log."""
    losses: list[Any] = []

    def once() -> None:
        loss = bench.net(bench.inputs(1, 16)).square().mean()
        loss.backward(retain_graph=True)
        losses.append(loss)

    return bench.run(_paced(bench, once))


def leak_pools_of_tenants(bench: CappedBench) -> Iterator[object]:
    """A memory pool for each tenant's scratch memory; the pools stay when the tenants have gone."""
    pools: list[Any] = []

    def once() -> None:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            bench.new(bench.draw.uniform(1.2, 9) * MIB).zero_()
        pools.append(pool)

    return bench.run(_paced(bench, once, torch.cuda.memory_reserved))


def leak_creeping_holes(bench: CappedBench) -> Iterator[object]:
    """The longest sample so far needs a larger workspace; a mask kept in the old one's segment holds all of that."""
    room, begin = bench.room // (2 * MIB), bench.draw.randint(8, 14)
    rises = int(-begin + math.sqrt(begin * begin + 2 * room))  # segments of begin, begin + 1, ... times 2 MiB
    period = max(bench.life // max(rises, 1), 1)

    def each(step: int) -> None:
        rise = step // period
        workspace = bench.new(2 * MIB * (begin + rise) + 0.9 * MIB)
        if step % period == 0:
            bench.kept.append(bench.new(1.05 * MIB))
        workspace.zero_()

    return bench.run(each)


def leak_worst_samples(bench: CappedBench) -> Iterator[object]:
    """One image of each batch is kept to be looked at, and with it the batch; above it the saw of the epochs."""
    worst: list[Any] = []
    scores: list[Any] = []
    epoch = bench.draw.randint(25, 60)
    images = max(int(0.8 * bench.unit / (3 * 64 * 64 * 4)), 2)
    look = torch.nn.Linear(3 * 64 * 64, 32).to(DEVICE)

    def each(step: int) -> None:
        if step % epoch == 0:
            scores.clear()
        batch = torch.randn(images, 3, 64, 64, device=DEVICE)
        with torch.no_grad():
            look(batch.flatten(1))
        worst.append(batch[bench.draw.randrange(images)])
        scores.append(_rows(0.22 * bench.room / epoch))

    return bench.run(each)


def leak_cached_teacher(bench: CappedBench) -> Iterator[object]:
    """The second phase, from 60 % of the run on, caches a teacher's outputs by sample, of a stream without an end."""
    bench.onset = int(0.6 * bench.steps)
    rate = bench.room / bench.draw.uniform(110, 190)
    teacher, cache = copy.deepcopy(bench.net).eval(), {}
    samples = max(round(rate / (bench.length * 2000 * 2)), 1)

    def each(step: int) -> None:
        if step >= bench.onset:
            with torch.no_grad():
                for begin in range(0, samples, 8):
                    logits = teacher(bench.inputs(min(8, samples - begin), bench.length)).half()
                    cache.update({(step, begin + row): values.clone() for row, values in enumerate(logits)})

    return bench.run(each)


def leak_search_tree(bench: CappedBench) -> Iterator[object]:
    """A tree of states that is searched ever wider and never pruned: it grows with the square of the steps."""
    tree: dict[int, Any] = {}
    value = torch.nn.Linear(WIDTH, WIDTH).to(DEVICE)

    def each(step: int) -> None:
        with torch.no_grad():
            tree[step] = value(_rows(2 * bench.room * (step + 1) / bench.life**2)).tanh()

    return bench.run(each)


def leak_packed_activations(bench: CappedBench) -> Iterator[object]:
    """Activations packed to half precision, never dropped once unpacked; the job stops for seconds now and then."""
    packed: dict[int, Any] = {}
    pause = max(bench.life // bench.draw.randint(3, 5), 30)
    layer = torch.nn.TransformerEncoderLayer(128, 4, batch_first=True).to(DEVICE)

    def pack(tensor: Any) -> int:
        packed[len(packed)] = tensor.detach().half()
        return len(packed) - 1

    def once() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda key: packed[key].float()):
            functional.gelu(layer.linear1(torch.randn(4, 64, 128, device=DEVICE))).square().mean().backward()
        layer.zero_grad(set_to_none=True)

    leak = _paced(bench, once)

    def each(step: int) -> None:
        leak(step)
        if step % pause == pause - 1:
            time.sleep(bench.draw.uniform(3, 9))

    return bench.run(each)


def leak_heads_of_old_tasks(bench: CappedBench) -> Iterator[object]:
    """Each task brings a new head; the optimizer goes on holding the old ones and their state."""
    period = max(bench.life // bench.draw.randint(14, 28), 4)
    heads: list[Any] = []
    optimizer: Any = torch.optim.AdamW([torch.zeros(1, device=DEVICE, requires_grad=True)])
    classes = max(int(period * bench.unit / 3 / ROW), 2)

    def each(step: int) -> None:
        if step % period == 0:
            heads[:] = [torch.nn.Linear(WIDTH, classes).to(DEVICE)]
            optimizer.add_param_group({"params": heads[0].parameters()})

    def train() -> None:
        heads[0](torch.randn(16, WIDTH, device=DEVICE)).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        bench.train()

    return bench.run(each, train)


# ------------------------------------------------------------------- healthy loops


def answers_with_a_context_limit(bench: CappedBench) -> Iterator[object]:
    """Decoding with key-value caches that grow to the answer's end, at most the context limit, and begin anew."""
    layers, token = 4, 2 * 8 * WIDTH * 2
    limit = int(bench.room * bench.draw.uniform(0.12, 0.2) / (layers * token))
    block = max(limit // bench.draw.randint(60, 220), 1)
    caches: list[tuple[Any, Any]] = []
    end = 0

    def each(_step: int) -> None:
        nonlocal end
        if not caches or caches[0][0].shape[2] + block > end:
            empty = torch.empty(8, 8, 0, 64, dtype=torch.half, device=DEVICE)
            caches[:] = [(empty, empty)] * layers
            end = int(limit * bench.draw.uniform(0.4, 1))
        new = torch.randn(8, 8, block, 64, dtype=torch.half, device=DEVICE)
        for layer, (keys, values) in enumerate(caches):
            caches[layer] = keys, values = torch.cat((keys, new), 2), torch.cat((values, new), 2)
            functional.scaled_dot_product_attention(new, keys, values)

    return bench.run(each)


def replay_ring_of_frames(bench: CappedBench) -> Iterator[object]:
    """A replay buffer with a length, full after most of the run."""
    length = int(bench.steps * bench.draw.uniform(0.6, 0.9))
    ring: deque[Any] = deque(maxlen=length)
    environments = max(int(bench.room * bench.draw.uniform(0.3, 0.6) / length / FRAME), 1)
    policy = torch.nn.Linear(FRAME, 18).to(DEVICE)

    def each(_step: int) -> None:
        ring.append(torch.randint(0, 256, (environments, 4, 84, 84), dtype=torch.uint8, device=DEVICE))
        policy(bench.draw.choice(ring)[:64].flatten(1).float() / 255).mean().backward()
        policy.zero_grad(set_to_none=True)

    return bench.run(each)


def horizons_of_ppo(bench: CappedBench) -> Iterator[object]:
    """Observations of a horizon, stacked, learned from in a few passes, dropped."""
    horizon, updates = bench.draw.randint(60, 150), bench.draw.randint(6, 20)
    policy = _stack(8 * MIB, WIDTH)
    optimizer = torch.optim.Adam(policy.parameters())
    steps: list[Any] = []
    stacked: list[Any] = []

    def train() -> None:
        if len(steps) < horizon:
            steps.append(_rows(bench.draw.uniform(0.25, 0.3) * bench.room / horizon))
            with torch.no_grad():
                policy(steps[-1][:256])
            return
        if not stacked:
            stacked.extend([torch.cat(steps)] + [None] * updates)
        batch = stacked[0][torch.randint(0, len(stacked[0]), (512,), device=DEVICE)]
        policy(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        stacked.pop()
        if len(stacked) == 1:
            stacked.clear()
            steps.clear()

    return bench.run(lambda _step: None, train)


def averages_begun_late(bench: CappedBench) -> Iterator[object]:
    """A moving average of the weights from a third of the run on, a stochastic average near its end."""
    net = _stack(0.09 * bench.room)
    optimizer = torch.optim.AdamW(net.parameters())
    averages = torch.optim.swa_utils
    begins = [int(bench.steps * bench.draw.uniform(*share)) for share in ((0.2, 0.45), (0.6, 0.8))]
    models: list[Any] = []

    def each(step: int) -> None:
        if step == begins[0]:
            models.append(averages.AveragedModel(net, multi_avg_fn=averages.get_ema_multi_avg_fn(0.999)))
        if step == begins[1]:
            models.append(averages.AveragedModel(net))
        for model in models:
            model.update_parameters(net)

    return bench.run(each, lambda: _fit(net, optimizer))


def unfrozen_from_the_top(bench: CappedBench) -> Iterator[object]:
    """One layer more learns every few steps, and gets its optimizer state then."""
    net = _stack(0.13 * bench.room)
    optimizer = torch.optim.AdamW(net.parameters())
    period = max(int(bench.steps * bench.draw.uniform(0.5, 0.85) / len(net)), 1)

    def each(step: int) -> None:
        for height, layer in enumerate(reversed(net)):
            layer.requires_grad_(height <= step // period)

    return bench.run(each, lambda: _fit(net, optimizer))


def domains_on_first_sight(bench: CappedBench) -> Iterator[object]:
    """An embedding table, and its optimizer state, for each domain of the corpus when its first batch comes."""
    count = bench.draw.randint(14, 24)
    rows = int(0.6 * bench.room / count / 3 / ROW)
    tables: dict[int, tuple[Any, Any]] = {}

    def each(step: int) -> None:
        seen = min(count, 1 + int(count * step / (0.6 * bench.steps)))
        domain = min(int(bench.draw.paretovariate(0.7)), seen) - 1
        if domain not in tables:
            table = torch.nn.Embedding(rows, WIDTH).to(DEVICE)
            tables[domain] = (table, torch.optim.AdamW(table.parameters()))
        table, optimizer = tables[domain]
        table(torch.randint(0, rows, (256,), device=DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return bench.run(each)


def loader_ahead_of_training(bench: CappedBench) -> Iterator[object]:
    """A thread copies batches to the GPU on a stream of its own; the queue is full or empty as training is slow."""
    depth, slow = bench.draw.randint(12, 30), False
    loaded: queue.Queue[Any] = queue.Queue(maxsize=depth)
    host = torch.empty(int(0.4 * bench.room / depth), dtype=torch.uint8, pin_memory=True)

    def load() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            while True:
                size = int(len(host) * (0.6 + 0.4 * abs(math.sin(time.monotonic()))))
                loaded.put(host[:size].to(DEVICE, non_blocking=True))
                time.sleep(0.02)

    threading.Thread(target=load, daemon=True).start()
    ends = 0

    def each(step: int) -> None:
        nonlocal slow, ends
        if step >= ends:
            slow, ends = not slow, step + bench.draw.randint(50, 160)
        if not slow or step % 4 == 0:
            with contextlib.suppress(queue.Empty):
                for _ in range(1 if slow else 4):
                    batch = loaded.get_nowait()
                    batch.record_stream(torch.cuda.current_stream())
                    batch[:4096].sum()

    return bench.run(each)


def scores_of_long_epochs(bench: CappedBench) -> Iterator[object]:
    """A metric that needs all scores of an epoch, computed and reset at its end; two to five epochs."""
    epoch = int(bench.steps * bench.draw.uniform(0.2, 0.45))
    scores: list[Any] = []

    def each(step: int) -> None:
        scores.append(_rows(bench.draw.uniform(0.25, 0.35) * bench.room / epoch).softmax(-1))
        if step % epoch == epoch - 1:
            torch.cat(scores).mean(0)
            scores.clear()

    return bench.run(each)


def graphs_of_a_few_shapes(bench: CappedBench) -> Iterator[object]:
    """A CUDA graph for each of a few padded shapes, the rarer ones met late."""
    capture = _captures(bench)
    count = bench.draw.randint(4, 7)

    def each(step: int) -> None:
        known = 1 + int(min(step / bench.until, 1) * (count - 1))
        shape = bench.draw.randint(1, known)
        capture(bench.batch, max(2 * bench.length * shape // count // 8 * 8, 8))

    return bench.run(each)


def streams_one_by_one(bench: CappedBench) -> Iterator[object]:
    """Every while one stream more serves requests: its blocks and its cuBLAS workspace are its own."""
    count, streams = bench.draw.randint(6, 12), [torch.cuda.Stream()]
    net = _stack(20 * MIB)
    period = int(bench.steps * bench.draw.uniform(0.4, 0.75) / count)

    def each(step: int) -> None:
        if step % period == period - 1 and len(streams) < count:
            streams.append(torch.cuda.Stream())
        stream = bench.draw.choice(streams)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(stream):
            net(torch.randn(bench.draw.randint(100, 900), 1024, device=DEVICE))
        torch.cuda.current_stream().wait_stream(stream)

    return bench.run(each)


def recomputation_switched(bench: CappedBench) -> Iterator[object]:
    """Activations are recomputed at first, then kept, then recomputed again."""
    first, second = sorted(bench.draw.sample(range(bench.steps // 6, 5 * bench.steps // 6), 2))
    step = 0

    def train() -> None:
        nonlocal step
        hidden = bench.inputs(5 * bench.batch, bench.length)
        for layer in bench.net:
            recomputed = not first <= step < second
            hidden = checkpoint(layer, hidden, use_reentrant=False) if recomputed else layer(hidden)
        hidden.square().mean().backward()
        bench.optimizer.step()
        bench.optimizer.zero_grad(set_to_none=True)
        step += 1

    return bench.run(lambda _step: None, train)


def buckets_of_a_token_budget(bench: CappedBench) -> Iterator[object]:
    """Batches of one length bucket each, as many samples as a budget of tokens allows; every epoch starts short."""
    budget, epoch, step = 5 * bench.batch * bench.length, bench.draw.randint(80, 200), 0

    def train() -> object:
        nonlocal step
        spread = 0.2 + 0.8 * (step % epoch) / epoch
        length = int(min(max(bench.draw.lognormvariate(4, spread), 16), 384)) // 16 * 16
        step += 1
        return bench.train(batch=max(budget // length * bench.draw.randint(6, 10) // 10, 1), length=length)

    return bench.run(lambda _step: None, train)


def last_three_checkpoints(bench: CappedBench) -> Iterator[object]:
    """Every while a validation with a larger batch, and a copy of the weights; the last three are kept."""
    net = _stack(0.07 * bench.room)
    optimizer = torch.optim.AdamW(net.parameters())
    copies: deque[Any] = deque(maxlen=3)
    period = int(bench.steps * bench.draw.uniform(0.1, 0.25))

    def each(step: int) -> None:
        if step % period == period - 1:
            with torch.no_grad():
                net(torch.randn(8192, 1024, device=DEVICE))
            copies.append({name: value.clone() for name, value in net.state_dict().items()})

    return bench.run(each, lambda: _fit(net, optimizer))


def adapters_up_to_eight(bench: CappedBench) -> Iterator[object]:
    """Low-rank adapters join a frozen model at even intervals, eight in all, and learn together."""
    net = _stack(50 * MIB).requires_grad_(False)
    rank = max(int(bench.draw.uniform(0.25, 0.5) * bench.room / 8 / 4 / (len(net) * 2 * 1024 * 4)), 1)
    period = int(bench.steps * bench.draw.uniform(0.5, 0.8) / 8)
    adapters: list[Any] = []
    optimizers: list[Any] = []

    def each(step: int) -> None:
        if step % period == 0 and len(adapters) < 8:
            shapes = [(torch.nn.Linear(1024, rank, bias=False), torch.nn.Linear(rank, 1024, bias=False)) for _ in net]
            adapter = torch.nn.ModuleList(torch.nn.Sequential(*pair) for pair in shapes).to(DEVICE)
            adapters.append(adapter)
            optimizers.append(torch.optim.AdamW(adapter.parameters()))

    def train() -> None:
        hidden = torch.randn(32, 1024, device=DEVICE)
        for layer, *added in zip(net, *adapters):
            hidden = layer(hidden) + sum(adapter(hidden) for adapter in added)
        hidden.square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return bench.run(each, train)


def accumulation_doubles(bench: CappedBench) -> Iterator[object]:
    """Mixed precision; 1, 2, 4, then 8 parts of a batch to an optimizer step, whose outputs are kept until then."""
    stage = int(bench.steps * bench.draw.uniform(0.15, 0.28))
    outputs: list[Any] = []
    step = 0

    def train() -> None:
        nonlocal step
        with torch.autocast("cuda", dtype=torch.bfloat16):
            outputs.append(bench.net(bench.inputs(2 * bench.batch, bench.length)))
            outputs[-1].float().square().mean().backward()
        if len(outputs) >= 2 ** min(step // stage, 3):
            bench.optimizer.step()
            bench.optimizer.zero_grad(set_to_none=True)
            outputs.clear()
        step += 1

    return bench.run(lambda _step: None, train)


def experts_out_of_balance(bench: CappedBench) -> Iterator[object]:
    """Tokens padded to the fullest of eight experts: ever more go to one, until a loss balances them."""
    up = torch.randn(8, 256, 1024, device=DEVICE, requires_grad=True)
    down = torch.randn(8, 1024, 256, device=DEVICE, requires_grad=True)
    optimizer = torch.optim.AdamW([up, down])
    taste = [0.0] * 8
    step = 0

    def train() -> None:
        nonlocal step
        pull = 0.03 if step < bench.until else -0.06
        taste[:] = [max(value + bench.draw.gauss(pull * value, 0.04), -3) for value in taste]
        taste[:] = [min(value, 3) for value in taste]
        loads = [math.exp(value) for value in taste]
        fullest = max(int(4096 * max(loads) / sum(loads)), 1)
        hidden = functional.gelu(torch.bmm(torch.randn(8, fullest, 256, device=DEVICE), up))
        torch.bmm(hidden, down).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1

    return bench.run(lambda _step: None, train)


def pruned_in_rounds(bench: CappedBench) -> Iterator[object]:
    """After each round of training a narrower model goes on: it shrinks."""
    width, count = 1280, 0
    period = bench.steps // bench.draw.randint(5, 9)
    net: Any = None
    optimizer: Any = None

    def each(step: int) -> None:
        nonlocal net, optimizer, width, count
        if net is None:
            net = _stack(0.12 * bench.room, width)
            count = len(net)
        elif step % period == period - 1:
            old, width = net, int(width * 0.85) // 8 * 8
            net = _stack(count * 4 * width * (width + 1), width)
            with torch.no_grad():
                for thin, wide in zip(net, old):
                    thin[0].weight.copy_(wide[0].weight[:width, :width])
        else:
            return
        optimizer = torch.optim.AdamW(net.parameters())

    return bench.run(each, lambda: _fit(net, optimizer, width))


def resized_images(bench: CappedBench) -> Iterator[object]:
    """Images of 32 pixels at first, larger stage by stage; the last stage, for fine-tuning, a little smaller again."""
    channels = (3, 32, 32, 64, 64)
    convolutions = [
        torch.nn.Sequential(torch.nn.Conv2d(a, b, 3, padding=1), torch.nn.GroupNorm(8, b), torch.nn.ReLU())
        for a, b in zip(channels, channels[1:])
    ]
    net = torch.nn.Sequential(*convolutions).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    sizes = (32, 48, 64, 80, 96, 112, 96)
    stage, step = int(bench.steps * bench.draw.uniform(0.1, 0.14)), 0

    def train() -> None:
        nonlocal step
        size = sizes[min(step // stage, len(sizes) - 1)]
        images = torch.randn(16, 3, size, size, device=DEVICE).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            net(images).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1

    return bench.run(lambda _step: None, train)


def queue_of_negative_keys(bench: CappedBench) -> Iterator[object]:
    """Momentum contrast: keys of the last batches, as many as the queue holds, in batches of uneven size."""
    query = _stack(6 * MIB, WIDTH)
    key = copy.deepcopy(query).requires_grad_(False)
    optimizer = torch.optim.SGD(query.parameters(), lr=0.03)
    limit = bench.draw.uniform(0.25, 0.5) * bench.room
    batch = limit / (bench.steps * bench.draw.uniform(0.4, 0.7))
    keys: deque[Any] = deque()

    def each(_step: int) -> None:
        views = _rows(batch * bench.draw.uniform(0.6, 1.4))
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters()):
                slow.mul_(0.999).add_(fast, alpha=0.001)
            keys.append(functional.normalize(key(views)))
        while sum(part.numel() * 4 for part in keys) > limit:
            keys.popleft()
        (query(views[:128]) @ bench.draw.choice(keys)[:1024].T).logsumexp(1).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return bench.run(each)


def teacher_for_a_while(bench: CappedBench) -> Iterator[object]:
    """A large teacher, read in part by part, teaches for some hundred steps and leaves."""
    begin, end = int(bench.steps * bench.draw.uniform(0.15, 0.3)), int(bench.steps * bench.draw.uniform(0.6, 0.8))
    share, parts = bench.draw.uniform(0.3, 0.6), bench.draw.randint(10, 60)
    teacher: list[Any] = []

    def each(step: int) -> None:
        if begin <= step < end and len(teacher) < parts:
            teacher.append(_stack(share * bench.room / parts, WIDTH).requires_grad_(False))
        elif begin <= step < end:
            hidden = torch.randn(32, WIDTH, device=DEVICE)
            for part in teacher:
                hidden = part(hidden)
        elif step == end:
            teacher.clear()
            torch.cuda.empty_cache()

    return bench.run(each)


def calibration_rounds(bench: CappedBench) -> Iterator[object]:
    """Quantization-aware training: now and then observers gather activations for some batches, and let them go."""
    batches = bench.draw.randint(50, 110)
    begins = [int(bench.steps * share) for share in (0.12, 0.45, 0.75)]
    layers = list(bench.net)[1:-1]
    activations = len(layers) * bench.batch * bench.length * layers[0].linear1.in_features * 4
    share = min(0.45 * bench.room / batches / activations, 1.0)
    observed: list[Any] = []
    handles: list[Any] = []

    def observe(_layer: Any, _inputs: Any, output: Any) -> None:
        values = output.detach().flatten()
        observed.append(values[: max(int(len(values) * share), 1)].clone())

    def each(step: int) -> None:
        if step in begins:
            handles.extend(layer.register_forward_hook(observe) for layer in layers)
        if step - batches in begins:
            for handle in handles:
                handle.remove()
            for values in observed:
                values.abs().amax()
            handles.clear()
            observed.clear()

    return bench.run(each)


def unrolled_ever_longer(bench: CappedBench) -> Iterator[object]:
    """Back-propagation through ever more time steps, up to a limit; the states of the last sequence are kept."""
    longest = bench.draw.randint(40, 100)
    cell = torch.nn.Linear(2 * WIDTH, WIDTH).to(DEVICE)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    batch = max(int(0.5 * bench.room / longest / (4 * ROW)), 1)
    states: list[Any] = []
    step = 0

    def train() -> None:
        nonlocal step
        state = torch.zeros(batch, WIDTH, device=DEVICE)
        losses = []
        states.clear()
        for _ in range(4 + int((longest - 4) * min(step / (1.3 * bench.until), 1))):
            state = torch.tanh(cell(torch.cat((torch.randn_like(state), state), 1)))
            losses.append(state.mean())
            states.append(state.detach())
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1

    return bench.run(lambda _step: None, train)


def requests_of_a_day(bench: CappedBench) -> Iterator[object]:
    """Sessions of a chat server come as the day has it, grow, and end; none is admitted above a limit."""
    share = bench.draw.uniform(0.35, 0.6)
    token = 8 * 2 * WIDTH * 2
    block = max(int(share * bench.room / (20 * 20 * token)), 1)
    sessions: list[list[Any]] = []

    def each(step: int) -> None:
        hour = math.sin(math.pi * step / bench.steps) ** 2
        held = sum(cache.numel() * 2 for cache, _left in sessions)
        if bench.draw.random() < 0.8 * hour and held < share * bench.room:
            sessions.append([torch.empty(8, 2, 8, 0, 64, dtype=torch.half, device=DEVICE), bench.draw.randint(10, 40)])
        for session in sessions:
            new = torch.randn(8, 2, 8, block, 64, dtype=torch.half, device=DEVICE)
            session[:] = [torch.cat((session[0], new), 3), session[1] - 1]
        sessions[:] = [session for session in sessions if session[1] > 0]

    return bench.run(each)


def learning_rate_search(bench: CappedBench) -> Iterator[object]:
    """Before each of two phases a search for the learning rate, which keeps weights to go back to until it ends."""
    searches = [range(int(0.2 * bench.steps)), range(int(0.55 * bench.steps), int(0.7 * bench.steps))]
    net = _stack(12 * MIB, WIDTH)
    optimizer = torch.optim.AdamW(net.parameters())
    snapshots: list[Any] = []
    period = max(int(searches[0].stop * 13 * MIB / (bench.draw.uniform(0.25, 0.5) * bench.room)), 1)

    def each(step: int) -> None:
        search = next((search for search in searches if step in search), None)
        if search is None and snapshots:
            net.load_state_dict(bench.draw.choice(snapshots))
            snapshots.clear()
        elif search is not None and step % period == 0:
            optimizer.param_groups[0]["lr"] = 1e-6 * 10 ** (5 * (step - search.start) / len(search))
            snapshots.append(copy.deepcopy(net.state_dict()))

    return bench.run(each, lambda: _fit(net, optimizer, WIDTH))


LEAKS: tuple[Loop, ...] = tuple(made for name, made in sorted(globals().items()) if name.startswith("leak_"))
HEALTHY: tuple[Loop, ...] = (
    accumulation_doubles, adapters_up_to_eight, answers_with_a_context_limit, averages_begun_late,
    buckets_of_a_token_budget, calibration_rounds, domains_on_first_sight, experts_out_of_balance,
    graphs_of_a_few_shapes, horizons_of_ppo, last_three_checkpoints, learning_rate_search, loader_ahead_of_training,
    pruned_in_rounds, queue_of_negative_keys, recomputation_switched, replay_ring_of_frames, requests_of_a_day,
    resized_images, scores_of_long_epochs, streams_one_by_one, teacher_for_a_while, unfrozen_from_the_top,
    unrolled_ever_longer,
)  # fmt: skip
RESERVED = frozenset({"leak_graphs_of_new_shapes", "leak_pools_of_tenants", "leak_creeping_holes"})
"""Leaks that show in what the allocator has reserved, and less or not in what is allocated."""
NEED_KERNELS = (leak_graphs_of_new_shapes, graphs_of_a_few_shapes)
"""CUDA graphs: not on the rig."""
