"""Starts the probe inside a running Python, where ``remote_exec`` runs it. Sent as text; imports nothing at its top.

Python runs it in the main thread, between any two of the job's instructions: perhaps in ``optimizer.step()``, or while
it holds a lock of torch, where neither an import nor a registration is safe. So a thread of its own does everything: it
may wait while the job's thread continues. A file receives the outcome.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

FINDINGS = ("watching", "waiting", "dormant", "off", "no_torch", "importing", "no_device", "many_hooks", "failed")
"""What it may say: the first word in the file. ``failed`` is followed by the error."""


def begin(package: str, level: str, outcome: str) -> None:
    """Start the probe from the folder ``package`` in this process; the finding goes into the file ``outcome``."""
    import _thread  # not threading, whose start() waits, and takes locks that this thread may hold

    _thread.start_new_thread(_attach, (package, level, outcome))


def _attach(package: str, level: str, outcome: str) -> None:
    try:
        import signal

        # A signal for the process must go to a thread of the job, which may be waiting for just that (sigwait).
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        finding = _obstacle() or _watch(package, level)
    except BaseException as error:
        finding = f"failed {error!r}"[:500]
    _say(finding, outcome)


def _obstacle() -> str | None:
    """The finding if the probe cannot start here now."""
    import os
    import sys

    torch = sys.modules.get("torch")
    if os.environ.get("TIDEGAUGE_PROFILE", "").strip().lower() == "off":
        return "off"
    if torch is None:
        return "no_torch"
    if getattr(torch.__spec__, "_initializing", False):
        return "importing"
    # torch calls these hooks in a loop over them. With two or more of them, one that comes in the middle of the loop
    # would raise "OrderedDict mutated during iteration" in the job's step.
    hooks = sys.modules[torch.optim.Optimizer.__module__]._global_optimizer_post_hooks
    registered = getattr(sys.modules.get("tidegauge.probe.entry"), "_probe", None) is not None
    return "many_hooks" if len(hooks) > 1 and not registered else None


def _watch(package: str, level: str) -> str:
    tidegauge = _tidegauge(package)
    from tidegauge.probe import entry

    tidegauge.attach(level)
    probe = entry._probe
    if probe is None:
        return "no_device"
    if probe.watch is not None:
        return "watching"
    return "waiting" if probe.socket_path is None else "dormant"


def _tidegauge(package: str) -> ModuleType:
    """The package of this process's own environment, else the one in the folder ``package``."""
    import os
    import sys
    from importlib.util import find_spec, module_from_spec, spec_from_file_location

    spec = None if "tidegauge" in sys.modules else find_spec("tidegauge")
    if "tidegauge" in sys.modules or (spec is not None and spec.origin is not None):
        import tidegauge

        return tidegauge
    spec = spec_from_file_location(
        "tidegauge", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return sys.modules.setdefault("tidegauge", module)


def _say(finding: str, outcome: str) -> None:
    import contextlib
    import os

    with contextlib.suppress(OSError):  # who asked waits no more, and has taken the folder away
        with open(f"{outcome}.new", "w", encoding="utf-8", errors="replace") as file:
            file.write(finding)
        os.replace(f"{outcome}.new", outcome)
