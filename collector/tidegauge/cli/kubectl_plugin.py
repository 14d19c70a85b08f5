"""``kubectl tidegauge``: the commands that ask a service, for a user with a kubeconfig and no other way to the head.

kubectl runs a program called ``kubectl-tidegauge`` so. The commands are those of ``tidegauge``: this leads their
requests, by a socket that nobody else can open, through the API server's proxy to the head's Service, or straight to
the address of ``--server``, and shows the user's own token there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import TYPE_CHECKING
from urllib.parse import quote

from tidegauge.cli.errors import FINE, CommandError, UsageError
from tidegauge.cli.main import main as tidegauge
from tidegauge.http.access import NAMESPACE_HEADER, SHOWN_HEADER
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError

if TYPE_CHECKING:
    from tidegauge_scheduler_hooks.kubernetes.client.user_cluster import Answer, UserCluster

COMMANDS = ("jobs", "job", "incidents", "history", "report", "profile", "top", "efficiency", "status")
NO_TOKEN = (
    "this kubeconfig shows the API server a certificate, or nothing, and the head of Tidegauge takes tokens: name a "
    "service account of yours with --service-account NAME, for which one is made (`create` on serviceaccounts/token)"
)
MAX_FORM_BYTES = 8192
MAX_FOLDER_BYTES = 60
"""What a socket below it adds has 40 or so."""


_Ask = Callable[[str, str, Mapping[str, str], "bytes | None"], "Answer"]
"""Method, path with query, headers and body in."""


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    at = next((place for place, word in enumerate(words) if word in COMMANDS), len(words))
    if not words or {"-h", "--help"} & set(words[:at]):
        parser.print_help()
        return FINE
    if {"-h", "--help"} & set(words):
        return tidegauge(words[at:])
    args, rest = parser.parse_known_args(words)
    try:
        return _run(args, rest)
    except CommandError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kubectl tidegauge", allow_abbrev=False, add_help=False, usage="%(prog)s [options] COMMAND ...",
        description="The jobs of your namespace, their incidents, profiles and reports, with your own kubeconfig.",
        epilog=f"commands: {', '.join(COMMANDS)}; `kubectl tidegauge COMMAND --help` says what each takes",
    )  # fmt: skip
    add = parser.add_argument
    add("--kubeconfig", metavar="FILE", help="kubeconfig (default: as kubectl, KUBECONFIG or ~/.kube/config)")
    add("--context", metavar="NAME", help="context of the kubeconfig (default: the current one)")
    add("-n", "--namespace", metavar="NAME", help="namespace whose jobs are shown (default: the context's)")
    add("-A", "--all-namespaces", action="store_true", help="jobs of all namespaces that you may read")
    add(
        "--service-account",
        metavar="NAME",
        help="show a token of this service account of the namespace, made for an hour",
    )
    add("--audience", metavar="NAME", help="audience of that token: the chart's webAccess.kubernetesLoginAudience")
    add("--server", metavar="URL", help="address of the head (default: its Service, through the API server)")
    add("--service", metavar="NAMESPACE/NAME", default="tidegauge/tidegauge-head", help="that Service (%(default)s)")
    add("--tls", action="store_true", help="the head speaks TLS, which the API server does not verify")
    add("command", metavar="COMMAND", choices=COMMANDS, help=argparse.SUPPRESS)
    return parser


def _run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Raises ``CommandError``."""
    try:
        from tidegauge_scheduler_hooks.kubernetes.client.user_cluster import UserCluster
    except ImportError as error:
        raise CommandError(f"the package {error.name} is missing: pip install 'tidegauge[kubernetes]'") from None
    try:
        return _led(args, rest, UserCluster(args.kubeconfig or os.environ.get("KUBECONFIG"), args.context))
    except PermanentError as error:
        raise CommandError(str(error)) from error


def _led(args: argparse.Namespace, rest: Sequence[str], cluster: UserCluster) -> int:
    if args.service_account is None and args.audience is not None:
        raise UsageError("--audience is of the token that is made for --service-account: name one")
    namespace = args.namespace or cluster.namespace
    made = cluster.made_token(namespace, args.service_account, args.audience) if args.service_account else None
    ask = cluster.ask if args.server is None else _straight(args.server)
    base = _proxy_path(args) if args.server is None else args.server.rstrip("/")

    def led_on(method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        token = made or cluster.token()
        own = {SHOWN_HEADER: f"Bearer {token}"} | ({} if args.all_namespaces else {NAMESPACE_HEADER: namespace})
        return ask(method, f"{base}{path}", {**headers, **own}, body)

    if not made and cluster.token() is None:
        raise CommandError(NO_TOKEN)
    with _socket(led_on) as socket:
        return tidegauge([args.command, *rest, "--api", f"unix://{quote(str(socket))}"])


def _proxy_path(args: argparse.Namespace) -> str:
    namespace, slash, name = args.service.partition("/")
    if not slash or not namespace or not name or "/" in name:
        raise UsageError(f"--service is NAMESPACE/NAME, as tidegauge/tidegauge-head, not {args.service!r}")
    return f"/api/v1/namespaces/{namespace}/services/{'https' if args.tls else 'http'}:{name}:api/proxy"


def _straight(server: str) -> _Ask:
    """To the head itself, whose certificate is verified as by every command (setting ``api_ca_file``)."""
    from urllib3 import PoolManager

    from tidegauge.settings import Settings
    from tidegauge_scheduler_hooks.kubernetes.client.user_cluster import asked

    if not server.startswith(("https://", "http://")):
        raise UsageError(f"--server is an address as https://gpu.example.org, not {server!r}")
    ca_file = Settings().api_ca_file
    pool = PoolManager(ca_certs=None if ca_file is None else str(ca_file))
    return lambda method, url, headers, body: asked(pool, method, url, headers, body)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@contextmanager
def _socket(ask: _Ask) -> Iterator[Path]:
    """A socket in a folder of this user alone, whose requests ``ask`` answers."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._led_on(None)

        def do_POST(self) -> None:
            self._led_on(self.rfile.read(min(int(self.headers.get("Content-Length") or 0), MAX_FORM_BYTES)))

        def _led_on(self, body: bytes | None) -> None:
            kept = {key: value for key in ("Accept", "Content-Type") if (value := self.headers.get(key)) is not None}
            try:
                answer = ask(self.command, self.path, kept, body)
            except SchedulerError as error:
                self._send(503, "application/json", json.dumps({"error": str(error)}).encode())
                return
            self._send(*answer)

        def _send(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's
            """Nothing: the command says what matters."""

    with tempfile.TemporaryDirectory(prefix="kubectl-tidegauge-", dir=_short_folder()) as folder:
        path = Path(folder) / "api.sock"
        with _Server(str(path), Handler) as server:
            threading.Thread(target=server.serve_forever, name="kubectl-tidegauge", daemon=True).start()
            try:
                yield path
            finally:
                server.shutdown()


def _short_folder() -> str:
    """The folder for temporary files; a job's may be too deep for a socket, whose path has 107 bytes (unix(7))."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= MAX_FOLDER_BYTES else "/tmp"


if __name__ == "__main__":
    sys.exit(main())
