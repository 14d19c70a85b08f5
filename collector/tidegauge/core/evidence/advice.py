"""Advice for each cause, worded with the names of holders, files and lines in the code at hand, as far as known.

One sentence per cause and per what is known of the place; without a place there is no advice that would be more than a
guess. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Optional

from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.owners import is_library
from tidegauge.core.evidence.rank_evidence import (
    ARROW,
    ATEXIT,
    CHAIN,
    KEPT_BY_CTX,
    MADE_ANEW,
    NAMES,
    Holder,
    HolderKind,
)
from tidegauge.core.evidence.words import (
    TENSOR_PART,
    container_of,
    elements_of,
    holder_words,
    line_words,
    lines_words,
    named_holder,
)
from tidegauge.core.units import format_bytes

_VIEW = "a view of a "
"""In the path to a tensor that is smaller than the storage that it keeps."""
_CACHE = "lru_cache"
_QUEUE = "Queue.queue"
"""In the path to a ``queue.Queue``'s items."""
_TEE = "_tee_dataobject"
"""In the path to what ``itertools.tee`` keeps."""
_REPEATED = " (repeated "
"""After the reference that leads from a chain's link to the next, in a path."""
_ONE_GRAPH = "one graph"
"""How ``Holder.detail`` begins where one tensor carries it all."""
_TRACEBACK = f"{ARROW}traceback"
"""What follows an exception in a path."""
_DICT = re.compile(r"\w*dict \([\d,]+ items?\)", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"\w+(?:\.\w+)+")
"""What the items of a container are, by the part of a path before the tensor: a dict of tensors, or an object that has
one."""
_ITEMS = " items)"
_APPENDED = frozenset({"list", "deque"})
_MIN_PLURAL_CHARS = 4
_MAX_NAME_CHARS = 30


Advice = Callable[[CauseInput], Optional[str]]


def _about_the_holder(words: Callable[[CauseInput, Holder], str]) -> Advice:
    def advise(case: CauseInput) -> Optional[str]:
        return None if case.holder is None else words(case, case.holder)

    advise.__doc__ = words.__doc__
    return advise


@_about_the_holder
def container(case: CauseInput, holder: Holder) -> str:
    """Tensors in lists, dicts, attributes, variables."""
    one, kind = _one_of(holder), container_of(holder)
    if holder.bound is not None:
        count = f"{holder.bound.items:,} of {holder.bound.most_items:,}"
        return f"{_named(case, holder)} has a bound ({count}): look for what else grows beside it"
    if holder.name is None:
        place = _line(case)
        made = "" if place is None else f", with tensors from {place},"
        if holder.path.startswith(ATEXIT):
            return (
                f"{holder_words(holder.path)}{made} keeps a tensor {_how_often(case)}: register a function with "
                "`atexit` once and not in each step, or pass `tensor.detach().cpu()` to it"
            )
        return (
            f"{holder_words(holder.path)}{made} has no name that was found: look for what is registered with tensors "
            "(callbacks, C++ extensions), and register `tensor.detach().cpu()`"
        )
    if holder.container == CHAIN:
        return _chain(case, holder)
    if holder.container in NAMES:
        return (
            f"{_named(case, holder)} gain a name in each step: assign to one name, delete the old ones, or keep the "
            "last N in a deque with `maxlen`"
        )
    if _TEE in holder.path:
        return (
            f"{_named(case, holder)} lags behind another iterator of the same `itertools.tee`, which keeps what only "
            "one of them has read: read both at the same pace, or delete the one that is not needed"
        )
    keeps = f"{_named(case, holder)} keeps a tensor {_how_often(case)}"
    if (holder.name or "").startswith(_CACHE):
        return f"{_named(case, holder)} keeps a tensor for every argument: give it a `maxsize`, or call `cache_clear()`"
    if _QUEUE in holder.path:
        return f"{keeps}: give the queue a `maxsize`, or take out what is put in"
    if _VIEW in holder.path:
        return (
            f"{keeps}, and a view keeps all of its storage: {_put_in(holder)} `{one}.detach().cpu()`, which copies the "
            f"view alone; or bound it, by {_bound(kind)}"
        )
    item = _item_of(holder)
    if item is not None and _DICT.fullmatch(item):
        return (
            f"{_named(case, holder)} keeps a dict of tensors (a `state_dict()`?) {_how_often(case)}: for each of them "
            f"{_put_in(holder)} `value.detach().cpu()`, a copy on the CPU; or bound it, by {_bound(kind)}"
        )
    if item is not None and _ATTRIBUTE.fullmatch(item):
        return (
            f"{_named(case, holder)} keeps an object with a tensor (`{item}`) {_how_often(case)}: {_put_in(holder)} a "
            "copy that is on the CPU, of a model `copy.deepcopy(model).cpu()`, of a tensor `tensor.detach().cpu()`; or "
            f"bound it, by {_bound(kind)}"
        )
    if _is_scalar(holder):
        return f"{keeps}: {_put_in(holder)} `{one}.item()`, which is a Python number"
    place = "" if case.line is None else f", at {lines_words(case.line, case.through)}"
    if kind is not None and (holder.detail or "").startswith(MADE_ANEW):
        return (
            f"{_named(case, holder)} has tensors that become larger{place}: bound their length, or keep the older "
            "parts on the CPU"
        )
    if kind is None and holder.tensors == 1:
        return (
            f"{_named(case, holder)} is one tensor that becomes larger{place}: bound its length, or keep the older "
            "part on the CPU"
        )
    if kind is None:
        return (
            f"{_named(case, holder)} keeps tensors alive: release them when the step is done, or keep "
            f"`{one}.detach().cpu()`"
        )
    is_data = case.line is not None and case.line.function == "__getitem__"
    ends = ". If it caches a data set, it is full after the first epoch" if is_data else ""
    return f"{keeps}: {_put_in(holder)} `{one}.detach().cpu()`; or bound it, by {_bound(kind)}{ends}"


def graph(case: CauseInput) -> Optional[str]:
    """A tensor that carries its graph."""
    holder = case.holder
    if holder is None or holder.name is None:
        place = _line(case)
        return None if place is None else (
            f"the graph of what {place} computes is kept: if it is an evaluation, run it under `torch.no_grad()`; else "
            "look for its result where it is summed up or stored, and use `.detach().cpu()` there (`.item()` for a "
            "scalar)"
        )  # fmt: skip
    if holder.container is None and (holder.detail or "").startswith(_ONE_GRAPH):
        added = "`loss.item()` (or `loss.detach()`)" if _is_scalar(holder) else "`tensor.detach()`"
        return (
            f"{_named(case, holder)} carries the graph of every step that went into it: add {added} to it, not the "
            "tensor"
        )
    one = _one_of(holder)
    stored = f"`{one}.item()`" if _is_scalar(holder) else f"`{one}.detach().cpu()`"
    return f"{_named(case, holder)} keeps tensors together with the graphs that made them: {_put_in(holder)} {stored}"


@_about_the_holder
def closure(case: CauseInput, holder: Holder) -> str:
    """A function with tensors in its cells."""
    if holder.container == CHAIN:
        return _chain(case, holder)
    return (
        f"{_named(case, holder)} holds tensors in a closure: pass them as arguments, or let the function that is kept "
        "capture only `.detach().cpu()` copies and numbers"
    )


@_about_the_holder
def hook(case: CauseInput, holder: Holder) -> str:
    """A hook that stores what it sees."""
    return (
        f"{_named(case, holder)} keeps what the hook sees at each call: register the hook once and call "
        "`handle.remove()` when it is done, store `output.detach().cpu()`, and clear that each step"
    )


@_about_the_holder
def exception(_: CauseInput, holder: Holder) -> str:
    """An exception with its traceback."""
    path = holder.path.partition(_TRACEBACK)[0]
    if holder.container == CHAIN:
        return (
            f"a chain of {holder.items or 0:,} exceptions ({path}) keeps all local variables of the failed calls "
            "alive: store `str(error)` or `traceback.format_exc()`, and `raise ... from None`"
        )
    return (
        f"a stored exception ({path}) keeps all local variables of the failed calls "
        "alive: store `str(error)` or `traceback.format_exc()`, or call "
        "`traceback.clear_frames(error.__traceback__)` first"
    )


@_about_the_holder
def cycle(case: CauseInput, holder: Holder) -> str:
    """Objects that hold each other."""
    if holder.detail == KEPT_BY_CTX:
        return (
            f"{_named(case, holder)} is an output of the function that keeps it, a cycle that the garbage collector "
            "does not see: pass inputs and outputs to `ctx.save_for_backward` instead"
        )
    gc_words = (
        "nothing collects them, because gc is off: call `gc.collect()` every N steps, or"
        if case.facts.gc_enabled is False
        else "they live until the garbage collector comes by:"
    )
    return (
        f"objects hold each other ({holder_words(holder.path)}), and {gc_words} break the cycle, with `weakref.ref` "
        "for the way back"
    )


def optimizer(case: CauseInput) -> str:
    """Optimizers that are made again, or one that gains parameters: then no more of them are alive than before."""
    reached = [] if case.holder is None else [f"what grew is reached through {holder_words(case.holder.path)}"]
    alive = case.facts.optimizers
    if alive is not None and alive in (1, case.early_facts.optimizers):
        told = f" ({reached[0]})" if reached else ""
        return (
            "one optimizer gains parameters: remove those that are no longer trained from its `param_groups` and its "
            f"`state`{told}"
        )
    seen = [*([] if alive is None else [f"{alive:,} optimizers are alive"]), *reached]
    told = f" ({'; '.join(seen)})" if seen else ""
    return (
        "create the optimizer once and change its `param_groups`, or drop the old one and its scheduler before "
        f"creating another{told}"
    )


def cuda_graphs(case: CauseInput) -> str:
    """Private pools, of which nothing comes back while their graphs live."""
    graphs, pools = case.facts.cuda_graphs, case.late_pools
    seen = [f"{graphs:,} CUDA graphs are alive"] if graphs else []
    seen += [] if pools is None else [f"private pools hold {format_bytes(pools.reserved_bytes)}"]
    seen += [] if case.pools_line is None else [f"most of it was reserved by {line_words(case.pools_line)}"]
    told = f" ({'; '.join(seen)})" if seen else ""
    return (
        f"capture fewer CUDA graphs, in one shared pool{told}: pad inputs to a few sizes, create one `pool = "
        "torch.cuda.graph_pool_handle()` and pass `pool=pool` to each `torch.cuda.graph` (such graphs must not run "
        "concurrently; copy results before the next one runs), and delete graphs that are no longer needed; "
        'with `torch.compile(mode="reduce-overhead")` use fewer shapes, or '
        "`torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True` and `torch._dynamo.mark_dynamic`. "
        "`expandable_segments:True` does not help"
    )


def fragmentation(_: CauseInput) -> str:
    """The allocator's pieces."""
    return (
        "run the job with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; `tidegauge whatif` on a snapshot shows "
        "what this and other settings would have needed"
    )


def communicators(case: CauseInput) -> str:
    """Process groups."""
    groups = case.facts.process_groups
    many = "" if groups is None else f" (there are {groups:,})"
    return (
        f"create each process group once and reuse it, or call `torch.distributed.destroy_process_group(group)` when "
        f"done{many}"
    )


def outside(_: CauseInput) -> str:
    """Something that calls CUDA itself."""
    return (
        "find what allocates GPU memory in this process outside PyTorch: CUDA extensions, other libraries (CuPy, JAX, "
        "NVIDIA DALI), process groups and streams created in a loop"
    )


def other_process(_: CauseInput) -> str:
    """Another process on the GPU."""
    return "not this rank: `nvidia-smi` on its host shows the process, and the scheduler its owner"


def dataloader_worker(case: CauseInput) -> str:
    """Child processes with CUDA contexts."""
    cure = (
        "return CPU tensors from the dataset and `collate_fn`, and move them in the training loop (`pin_memory=True`, "
        "`.to(device, non_blocking=True)`)"
    )
    held = f"{case.gpu_children:,}, {format_bytes(case.children_bytes or 0)}"
    if case.data_workers:
        return f"DataLoader workers of the rank use the GPU ({held}): {cure}"
    return f"child processes of the rank use the GPU ({held}): if they are DataLoader workers, {cure}"


def pinned(_: CauseInput) -> str:
    """Page-locked host memory."""
    return (
        "pinned memory is cached by size and not released: reuse pinned buffers of one size, and lower "
        "`num_workers` or `prefetch_factor` of loaders with `pin_memory=True`"
    )


def host_graph(case: CauseInput) -> str:
    """A chain of autograd nodes in host memory."""
    advice = graph(case)
    return advice or (
        "the job sums up or stores losses together with their graphs: after `backward()` these cost little on the "
        "GPU and much on the host; use `loss.item()`"
    )


def workspaces(_: CauseInput) -> str:
    """Streams on which matrix products run."""
    return "create the streams once and reuse them, instead of one per piece of work"


def autocast_cache(_: CauseInput) -> str:
    """A `with torch.autocast` around the loop whose weights are new in each step."""
    return (
        "enter `torch.autocast` in each step instead of around the loop, or pass `cache_enabled=False`; "
        "`torch.clear_autocast_cache()` empties it"
    )


def ddp_buckets(_: CauseInput) -> str:
    """Wrappers that are made again and again."""
    return "wrap the model in `DistributedDataParallel` once, and keep no earlier wrapper"


def line_alone(case: CauseInput) -> Optional[str]:
    """A line without a known holder."""
    place, search = _line(case), case.search
    if place is None:
        return None
    is_native = case.holder is not None and case.holder.kind is HolderKind.NATIVE
    if is_native and search is not None and search.problem is None:
        return (
            f"what {place} allocates stays alive, and no Python object refers to it: look for C++ code that keeps it "
            "(attributes of a TorchScript module, C++ extensions)"
        )
    return f"what {place} allocates stays alive: look for what keeps a reference to it"


def _chain(case: CauseInput, holder: Holder) -> str:
    link = holder.path.partition(_REPEATED)[0].rpartition(ARROW)[2]
    return (
        f"{_named(case, holder)} leads to a chain of {holder.items or 0:,} links that gains one in each step ({link}): "
        "drop the reference to the link before, or start anew instead of wrapping it again"
    )


def _line(case: CauseInput) -> Optional[str]:
    return None if case.line is None else lines_words(case.line, case.through)


def _named(case: CauseInput, holder: Holder) -> str:
    """The holder's name; with the user's lines where it lives in a library's file, which nobody edits."""
    place, where = _line(case), holder.where
    foreign = where is not None and bool(where.filename) and is_library(where.filename, case.roots)
    return named_holder(holder) + (f", with tensors from {place}," if foreign and place is not None else "")


def _how_often(case: CauseInput) -> str:
    steps, line = case.window_steps or 0, case.line
    blocks = sum(one.blocks for one in case.growth if one.line == line and one.grown_bytes > 0)
    return "of each step" if line is None or not steps or blocks >= 0.9 * steps else "now and then, and gives none back"


def _is_scalar(holder: Holder) -> bool:
    """Whether each tensor has one element, so that ``.item()`` works; a shape that is not known is none of these."""
    return elements_of(holder) == 1


def _bound(kind: Optional[str]) -> str:
    if kind == "deque":
        return "its `maxlen`"
    return "a deque with `maxlen`" if kind in _APPENDED else "deleting the entries that are done with"


def _item_of(holder: Holder) -> Optional[str]:
    """The part of the path between a container and the tensor; ``None`` where the tensor is an item itself."""
    *before, item, _ = ("", "", *holder.path.split(ARROW))
    return item if any(_ITEMS in part for part in before) else None


def _put_in(holder: Holder) -> str:
    return "append" if container_of(holder) in _APPENDED else "store"


def _one_of(holder: Holder) -> str:
    """A name for one of its items: ``loss`` of ``self.losses``; ``tensor`` where the holder's name tells nothing, or
    its items are no tensors."""
    name = (holder.name or "").rsplit(".", 1)[-1]
    item = _item_of(holder)
    if item is not None and not TENSOR_PART.match(item):
        return "tensor"
    if not name.isidentifier() or not name.isascii() or len(name) > _MAX_NAME_CHARS:
        return "tensor"
    if "loss" in name.lower():
        return "loss"
    if name.endswith("ies"):
        return f"{name[:-3]}y"
    if name.endswith(("ches", "shes", "sses", "xes")):
        return name[:-2]
    if len(name) >= _MIN_PLURAL_CHARS and name.endswith("s") and not name.endswith(("ss", "us", "is")):
        return name[:-1]
    return "tensor"
