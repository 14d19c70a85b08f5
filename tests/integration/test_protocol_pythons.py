"""Agents and a coordinator under different Pythons: what one writes the other reads, both ways."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import Any

import pytest

from integration.interpreters import CHECKOUT, interpreter
from integration.needs import missing
from matrix import pythons
from protocol_forms import described, full
from tidegauge.protocol.coding import Received, decode, encode
from tidegauge.protocol.messages import MESSAGES

THERE = """
import base64, json, sys
from protocol_forms import described, full
from tidegauge.protocol.coding import decode, encode
from tidegauge.protocol.messages import MESSAGES
told = {name: base64.b64decode(text) for name, text in json.load(sys.stdin).items()}
json.dump({
    "read": [name for name, form in MESSAGES.items() if decode(form, told[name]).message == full(form)],
    "written": {name: base64.b64encode(encode(full(form))).decode() for name, form in MESSAGES.items()},
    "forms": described(),
}, sys.stdout)
"""


@pytest.mark.parametrize("version", pythons("3.12", "3.13", "3.14"))
def test_messages_go_from_one_python_to_another_and_back(version: str) -> None:
    python = interpreter(version)
    if python is None:
        missing(f"no Python {version} on this machine")
    told = {name: base64.b64encode(encode(full(form))).decode() for name, form in MESSAGES.items()}
    environ = {"PATH": os.defpath, "PYTHONPATH": f"{CHECKOUT / 'collector'}:{CHECKOUT / 'tests'}"}
    done = subprocess.run(
        [python, "-W", "error", "-c", THERE], env={**environ, "PYTHONDONTWRITEBYTECODE": "1"}, cwd="/",
        input=json.dumps(told), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout)
    assert answer["read"] == list(MESSAGES)
    assert answer["forms"] == described()
    for name, form in MESSAGES.items():
        received: Received[Any] = decode(form, base64.b64decode(answer["written"][name]))
        assert received.message == full(form)
