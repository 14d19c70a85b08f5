"""What TLS and names cost the coordinator's HTTP API: processor time of a request, and of a flood of passwords.

The server runs in this process, clients in children, so that this process' own processor time is the server's alone.
Prints a table, and exits with 1 if the flood keeps more of a core busy than it may.

    PYTHONPATH=tests python bench/web_access_cost.py [--requests 300] [--flood-s 10] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import bcrypt

from tidegauge.cluster.api import client
from tidegauge.cluster.api.client import ApiAccess
from tidegauge.cluster.api.http_api import HttpApi
from tidegauge.cluster.api.route_access import Access
from tidegauge.http.door_start import open_door
from tidegauge.http.server import Response
from tidegauge.http.tokens import make_token, token_line
from tidegauge.settings import Settings
from web_certificates import Authority

COST = 10
"""Of bcrypt: what htpasswd's example in exporter-toolkit's documentation has."""
MAX_FLOOD_CORES = 0.25
"""Of a core for what a flood makes the server do: checks of passwords are a tenth of a core, the rest is answering."""
BODY = b"x" * 4096


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--flood-s", type=float, default=10.0)
    parser.add_argument("--json", metavar="FILE", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegauge-bench-") as folder:
        rows = measure(Path(folder), requests=args.requests, flood_s=args.flood_s)
    print(f"{'case':<44}{'requests':>9}{'ms each':>9}{'cores':>7}")
    for row in rows:
        print(f"{row['case']:<44}{row['requests']:>9}{row['ms_each']:>9.2f}{row['cores']:>7.2f}")
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=2))
    flood = next(row for row in rows if "paced" in str(row["case"]))
    print(f"bound: {flood['cores']:.2f} of {MAX_FLOOD_CORES} of a core under the flood")
    return 0 if float(flood["cores"]) <= MAX_FLOOD_CORES else 1


def measure(folder: Path, *, requests: int, flood_s: float) -> list[dict[str, float | str]]:
    token, authority = make_token(), Authority(folder)
    authority.issue("node7", "127.0.0.1")
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(COST)).decode()
    (folder / "tokens").write_text(token_line("ada", token))
    (folder / "tokens").chmod(0o600)
    (folder / "users.yml").write_text(f"basic_auth_users: {{ada: {hashed}}}\n")
    tls = "tls_server_config: {cert_file: node7.pem, key_file: node7.key}\n"
    (folder / "tls.yml").write_text(tls + f"basic_auth_users: {{ada: {hashed}}}\n")
    plain, names = Settings(), Settings(web_config_file=folder / "users.yml", api_tokens_file=folder / "tokens")
    both = Settings(web_config_file=folder / "tls.yml", api_tokens_file=folder / "tokens")
    ca = authority.certificate
    return [
        served("plain", plain, _asks, (requests, ApiAccess())),
        served("token", names, _asks, (requests, ApiAccess(token))),
        served("name and password, the same again", names, _asks, (requests, ApiAccess("ada:right"))),
        served("TLS and token", both, _asks, (requests, ApiAccess(token, ca))),
        served("TLS, name and password, the same again", both, _asks, (requests, ApiAccess("ada:right", ca))),
        served("flood: another wrong password each, paced", names, _guesses, (flood_s,)),
    ]


def served(
    case: str, settings: Settings, ask: Callable[..., None], arguments: tuple[object, ...]
) -> dict[str, float | str]:
    """Processor time of this process while a child asks."""
    count = [0]

    def page(_: object) -> Response:
        count[0] += 1
        return Response(BODY)

    print(f"… {case}", file=sys.stderr, flush=True)
    api = HttpApi(
        {"/page": page}, host="127.0.0.1", port=0, door=open_door(settings, what="bench"), access={"/page": Access.OWN}
    )
    api.start()
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("spawn").Process(target=ask, args=(api.url, sending, *arguments))
    child.start()
    receiving.recv()  # it is ready
    began_s, began_processor_s = time.monotonic(), time.process_time()
    asked = int(receiving.recv())
    took_s, processor_s = time.monotonic() - began_s, time.process_time() - began_processor_s
    child.join()
    api.stop()
    return {
        "case": case, "requests": asked, "ms_each": 1000 * processor_s / max(asked, 1),
        "cores": processor_s / took_s,
    }  # fmt: skip


def _asks(url: str, done: object, requests: int, access: ApiAccess) -> None:
    client.get_bytes(url, "/page", access=access)  # the first of a password pays for bcrypt
    _say(done, 0)
    for _ in range(requests):
        client.get_bytes(url, "/page", access=access)
    _say(done, requests)


def _guesses(url: str, done: object, seconds: float) -> None:
    """200 guesses a second: as fast as one can would measure the answering of requests, whatever they hold."""
    _say(done, 0)
    began_s, tried = time.monotonic(), 0
    while time.monotonic() - began_s < seconds:
        try:
            client.get_bytes(url, "/page", access=ApiAccess(f"ada:wrong {tried}"))
        except client.ApiError as error:
            if error.status not in (401, 429):
                raise
        tried += 1
        time.sleep(max(began_s + tried / 200 - time.monotonic(), 0))
    _say(done, tried)


def _say(done: object, value: int) -> None:
    done.send(value)  # type: ignore[attr-defined]  # a Connection, whose type depends on the platform


if __name__ == "__main__":
    raise SystemExit(main())
