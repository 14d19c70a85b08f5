"""The name of a job whose owner gave none, from its command line: ``train`` for ``torchrun … train.py``."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "torchrunx", "composer", "colossalai"})
"""Programs that start a Python script, or with ``-m`` a module, in several processes."""
_LAUNCHER_MODULES = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
_WRAPPERS = frozenset(
    {
        "env", "nice", "ionice", "nohup", "setsid", "stdbuf", "time", "timeout", "taskset", "numactl", "sudo", "exec",
        "srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prun", "horovodrun", "uv", "uvx", "poetry", "pipenv",
        "pdm", "hatch", "rye", "pixi", "conda", "mamba", "micromamba", "apptainer", "singularity", "nsys", "ncu",
    }
)  # fmt: skip
"""Programs that run the command which follows their own options."""
_NO_WORK = frozenset({"cd", "export", "source", ".", "set", "ulimit", "module", "echo", "mkdir", "sleep", "unset"})
"""What a line of a shell does before the command that it is about."""
_SCRIPT = re.compile(r"(.+)\.(?:py|pyc|pyz|sh|bash)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_NUMBER = re.compile(r"[\d.,:/x-]+[smhd]?")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_PYTHON_VALUES = frozenset({"-W", "-X", "--check-hash-based-pycs"})
_BETWEEN = re.compile(r"[;&|]+")


def command_name(command: Sequence[str]) -> str:
    """The script or module that a command runs, without launchers, shells and suffix; else the program's own name."""
    return _name(list(command), 0) or os.path.basename(command[0])


def _name(words: Sequence[str], depth: int) -> str:
    while words and _ASSIGNMENT.fullmatch(words[0]):
        words = words[1:]
    if not words or depth > len(_WRAPPERS):
        return ""
    program, rest = os.path.basename(words[0]), words[1:]
    if program in _SHELLS:
        found = _of_shell(rest, depth)
    elif program in _WRAPPERS:
        found = _of_wrapper(rest, depth)
    elif _PYTHON.fullmatch(program):
        found = _of_python(rest)
    else:
        found = _of_launcher(rest) if program in _LAUNCHERS else ""
    return found or _without_suffix(program)


def _of_shell(words: Sequence[str], depth: int) -> str:
    takes_value = False
    for place, word in enumerate(words):
        is_letters = word.startswith(("-", "+")) and not word.startswith("--")
        if takes_value:
            takes_value = False
        elif is_letters and word.endswith("c"):
            return _of_line(words[place + 1] if place + 1 < len(words) else "", depth)
        elif is_letters or word.startswith("-"):
            takes_value = is_letters and word.endswith(("o", "O"))
        else:
            return _without_suffix(word)
    return ""


def _of_line(line: str, depth: int) -> str:
    """The name of the first command of a shell's line that is about work."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    part: list[str] = []
    try:
        words = [*lexer, ";"]
    except ValueError:  # a quote that is not closed
        return ""
    for word in words:
        if not _BETWEEN.fullmatch(word):
            part.append(word)
        elif part and part[0] not in _NO_WORK and (name := _name(part, depth + 1)):
            return name
        else:
            part = []
    return ""


def _of_python(words: Sequence[str]) -> str:
    takes_value = False
    for place, word in enumerate(words):
        if takes_value:
            takes_value = False
        elif word in ("-m", "-c"):
            module = words[place + 1] if word == "-m" and place + 1 < len(words) else ""
            return _of_launcher(words[place + 2 :]) if module in _LAUNCHER_MODULES else module.rpartition(".")[2]
        elif not word.startswith("-"):
            return _without_suffix(word)
        else:
            takes_value = word in _PYTHON_VALUES
    return ""


def _of_launcher(words: Sequence[str]) -> str:
    for place, word in enumerate(words):
        if _SCRIPT.fullmatch(word):
            return _without_suffix(word)
        if word in ("-m", "--module") and place + 1 < len(words):  # of a module, or a flag before its name
            modules = [one for one in words[place + 1 :] if not one.startswith("-")]
            return modules[0].rpartition(".")[2] if modules else ""
    return ""


def _of_wrapper(words: Sequence[str], depth: int) -> str:
    """The command after options of which nobody knows whether they take a value: at ``--``, at a program that is known,
    at a script, else at the first word that is no option and follows none."""
    if "--" in words:
        return _name(words[words.index("--") + 1 :], depth + 1)
    after_option, first = False, ""
    for place, word in enumerate(words):
        program = os.path.basename(word)
        if program in _SHELLS | _LAUNCHERS | _WRAPPERS or _PYTHON.fullmatch(program) or _SCRIPT.fullmatch(program):
            return _name(words[place:], depth + 1)
        is_option = word.startswith("-")
        if not (first or is_option or after_option or _NUMBER.fullmatch(word) or _ASSIGNMENT.fullmatch(word)):
            first = "" if word in ("run", "exec", "profile") else _without_suffix(word)
        after_option = is_option and "=" not in word
    return first


def _without_suffix(path: str) -> str:
    name = os.path.basename(path)
    script = _SCRIPT.fullmatch(name)
    return name if script is None else script[1]
