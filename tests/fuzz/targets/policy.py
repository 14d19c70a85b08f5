"""A policy file as anybody may have written it: a policy, or errors in words with their lines, and soon."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fuzz.oracles import require
from fuzz.target import Target
from tidegauge_scheduler_hooks.policy.check import check_policy
from tidegauge_scheduler_hooks.policy.files import DEFAULT_FILE

EXAMPLES = Path(__file__).parents[3] / "examples"
MAX_MESSAGE_CHARS = 2_000


def one(data: bytes) -> None:
    """Findings or a policy, whatever the text: nothing is raised."""
    text = data.decode(errors="replace")
    findings = check_policy(text)
    require((findings.policy is None) == bool(findings.errors), "an error and a policy, or neither")
    lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + text.count("\u2029") + 2
    for finding in findings.found:
        require(finding.line is None or 1 <= finding.line <= lines, f"line {finding.line} of {lines}")
        require(len(str(finding)) <= MAX_MESSAGE_CHARS, f"a message of {len(str(finding)):,} characters")


def seeds() -> Iterable[bytes]:
    yield DEFAULT_FILE.read_bytes()
    for path in sorted(EXAMPLES.rglob("*policy*.y*ml")):
        yield path.read_bytes()
    yield b"version: 1\nmode: observe\nrules: []\n"
    yield b"version: 1\nrules:\n- &a {name: x, when: {}, then: []}\n- *a\n"
    yield bomb(4, 4)


def bomb(deep: int, wide: int) -> bytes:
    """Aliases of aliases: few bytes that stand for ``wide ** deep`` values."""
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * wide)}]" for n in range(1, deep + 1)]
    return "\n".join(lines).encode()


WORDS = (
    b"&a", b"*a", b"<<: ", b"!!python/object/apply:os.system [x]", b"!!binary ", b"1e999", b"9" * 400, b"- ", b"? ",
    b"| ", b"[" * 300, b"version: 1\n", b"mode: act\n", b"rules:\n", b"when:\n", b"then:\n", b"action: requeue",
    b"30m", b"0x10", b"---\n", b"2026-13-45", b"!!bool x", b"!!timestamp x", b"!!int ''", b"!!float x", b"!!omap [a]",
    b"!!pairs [{}]", b"!!set {a}", b"!!omap ", b".inf", b"{[a]: b}", b"%YAML 1.1\n", b"\xef\xbb\xbf",
    b"*a, *a, *a, *a, *a",
)  # fmt: skip
TARGET = Target(one, lambda: list(seeds()), words=WORDS, most_bytes=1 << 13, most_s=3.0)
