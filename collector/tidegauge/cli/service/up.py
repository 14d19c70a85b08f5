"""``tidegauge up`` starts the service on this node."""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tidegauge.cli.arguments import add_examples, add_json
from tidegauge.cli.config import add_settings_arguments, load_settings
from tidegauge.cli.errors import FINE, CommandError, UsageError, need
from tidegauge.cli.output import print_json, print_wrapped, progress
from tidegauge.cli.service_api import API_TOKEN, NO_URL, how_it_starts_again
from tidegauge.cluster.ray_service.ray_release import installed_release, why_too_old
from tidegauge.files import replace_file
from tidegauge.http.access import split_scheme
from tidegauge.secrets import others_may

if TYPE_CHECKING:
    from tidegauge.cluster.service_record import NodeSpec, ServiceRecord, StateFiles
    from tidegauge.settings import Settings

HELP = "start the service on this node: coordinator and agent, or with --join only an agent"

LOOPBACK = "127.0.0.1"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    add_settings_arguments(parser)
    parser.add_argument("--join", metavar="HOST:PORT", help="join the cluster with this head (needs --token-file)")
    parser.add_argument(
        "--token-file", metavar="FILE", type=Path, help="copy of the head's token on this node (mode 0600)"
    )
    parser.add_argument(
        "--node-address", metavar="IP",
        help="address under which other nodes reach this one (default: 127.0.0.1 for a head, which no other node can "
        "join; with --join, the address from which this node reaches the head)",
    )  # fmt: skip
    parser.add_argument(
        "--foreground", action="store_true", help="run in the foreground until a signal stops it (systemd, containers)"
    )
    add_json(parser)
    add_examples(
        parser,
        "tidegauge up                                               head and agent on one machine",
        "tidegauge up --node-address 10.0.0.1                       head that other nodes can join",
        "tidegauge up --join 10.0.0.1:6399 --token-file ./token     agent on another node",
    )


def run(args: argparse.Namespace) -> int:
    settings = load_settings(args)
    check_installed(is_head=not args.join)
    _check_public_url(settings)
    _check_web_access(settings, is_head=not args.join)
    os.environ.pop(API_TOKEN, None)  # the service does not need it, and its environment is readable for debuggers
    from tidegauge.cluster.ray_service import service_control
    from tidegauge.cluster.service_record import RecordError, prepare_state_dir, write_spec

    if bool(args.join) != bool(args.token_file):
        raise UsageError("--join and --token-file go together: a node joins with the head's token")
    try:
        files = prepare_state_dir(settings.state_dir.resolve())
    except OSError as error:
        raise CommandError(
            f"cannot use the state directory: {error}; choose another with --set state_dir=DIR"
        ) from error
    try:
        record = service_control.running_record(files)
    except RecordError as error:
        raise CommandError(f"{error}; `tidegauge down` removes it") from error
    if record is not None:
        if args.foreground:
            pid = record.supervisor.pid
            raise CommandError(f"the service is up already, as process {pid}; `tidegauge down` ends it")
        if args.join and (record.spec.is_head or args.join != record.spec.head_address):
            role = "as the head" if record.spec.is_head else "with head"
            raise CommandError(f"already up {role} {record.spec.head_address}; run `tidegauge down` first")
        _tell(files, record, as_json=args.json, already=True)
        others = _not_in_force(settings, record.spec)
        if args.node_address not in (None, record.spec.node_address):
            others.append("--node-address")
        if others:
            print(f"tidegauge up: the running service has other values of {', '.join(others)}; to use these, run "
                  "`tidegauge down`, then this command again", file=sys.stderr)  # fmt: skip
        return FINE
    if (why := service_control.why_not_seen(files, None)) is not None:
        raise CommandError(why)
    _clean_up_after_crash(files, joins=bool(args.join))
    spec = _spec(args, settings, files)
    write_spec(files, spec)
    if args.foreground:
        if (warning := _warning(spec)) is not None:
            print(f"tidegauge up: warning: {warning}", file=sys.stderr)
        return service_control.run_in_foreground(files, keeps_trying=not spec.is_head)
    supervisor = service_control.start_in_background(files)
    try:
        with progress("up") as say:
            record = service_control.wait_until_up(files, supervisor, say)
    except service_control.ServiceError as error:
        service_control.give_up(files, supervisor, str(error))
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        supervisor.terminate()
        raise
    _tell(files, record, as_json=args.json, already=False)
    return FINE


def check_installed(*, is_head: bool = True) -> None:
    """Raise ``CommandError`` if a package of the service is missing, or if Ray is too old for it. A node that joins
    needs the extra ``node`` alone, which is without the database."""
    for module in ("ray", "sqlalchemy") if is_head else ("ray",):
        if importlib.util.find_spec(module) is None:
            need(module, extra="agent", what="the service")
    if (reason := why_too_old(installed_release())) is not None:
        raise CommandError(reason)


def _check_public_url(settings: Settings) -> None:
    """Raise ``UsageError`` for an address that no link can lead to."""
    if settings.public_url and settings.pages_url is None:
        raise UsageError(f"public_url: {settings.public_url!r} is {NO_URL}")


def _check_web_access(settings: Settings, *, is_head: bool) -> None:
    """Raise ``CommandError`` for invalid web access files, which would only close the pages of a running service, and
    for ways to log in that cannot work here."""
    from tidegauge.cluster.ray_service.login_methods import LoginSetupError, check_login_methods
    from tidegauge.http.config import WebConfigError
    from tidegauge.http.door_files import read_door_files

    try:
        read_door_files(settings)
        if is_head:
            check_login_methods(settings)
    except (WebConfigError, LoginSetupError) as error:
        raise UsageError(f"{error}; see docs/web_access.md") from error


def _warning(spec: NodeSpec) -> str | None:
    """The warning about pages of this node that are open to others; ``None`` if there are none."""
    from tidegauge.http.door_files import read_door_files
    from tidegauge.http.door_start import what_is_open
    from tidegauge.settings import Settings

    try:
        settings = Settings(**spec.settings)
        asks_by_more = settings.munge_login or settings.kubernetes_login or settings.proxy_user_header is not None
        # Then the API asks for names in any case; /metrics of nodes knows those of files alone.
        with_api = spec.is_head and not (asks_by_more and not read_door_files(settings)[0].asks_names)
        return what_is_open(settings, what="the API, with /metrics," if with_api else "/metrics")
    except ValueError:
        # A file became invalid, which `tidegauge status` reports; or the service is of another version.
        return None


def _clean_up_after_crash(files: StateFiles, *, joins: bool) -> None:
    """End the processes of a service whose supervisor was killed. The cluster's state stays for the new head. Raises
    ``CommandError`` for a node of another head that would become one itself."""
    from tidegauge.cluster.ray_service import service_control
    from tidegauge.cluster.service_record import read_record, remove_traces

    record = read_record(files)
    if record is not None:
        if not (joins or record.spec.is_head or record.phase == "failed"):
            raise CommandError(
                f"the service that crashed here was a node of {record.spec.head_address}, and this would make it a "
                f"head: {how_it_starts_again(files, record)} restarts it; for a head run `tidegauge down` first"
            )
        left = service_control.sweep(record)
        if left:
            raise CommandError(f"process {left[0].process.pid} of a crashed service does not end")
        remove_traces(files, record.spec, keep_cluster_state=True)
        files.record.unlink(missing_ok=True)


def _spec(args: argparse.Namespace, settings: Settings, files: StateFiles) -> NodeSpec:
    from tidegauge.cluster.ray_service.node_command import address_towards, is_address
    from tidegauge.cluster.service_record import NodeSpec, choose_engine_dir, make_token

    if args.node_address and not is_address(args.node_address):
        raise UsageError(f"--node-address takes an IP address, not {args.node_address!r}")
    if args.join:
        head = _resolved(args.join)
        replace_file(files.token, _read_token(args.token_file).encode(), durable=True)
        try:
            node_address = args.node_address or address_towards(head)
        except OSError as error:
            raise CommandError(f"cannot reach the head {args.join} from here: {error}") from error
    else:
        make_token(files)
        node_address = args.node_address or LOOPBACK
        head = f"{node_address}:{_engine_port(settings, node_address)}"
    _check_node_ports(settings, node_address)
    _make_certificates(settings, files, node_address)
    return NodeSpec(
        state_dir=str(files.root),
        engine_dir=str(choose_engine_dir(files.root)),
        token_file=str(files.token),
        head_address=head,
        node_address=node_address,
        is_head=not args.join,
        settings=settings.model_dump(mode="json"),
    )


def _not_in_force(settings: Settings, spec: NodeSpec) -> list[str]:
    """The settings of this call that a running service was started without; one of an older version has fewer."""
    wanted = settings.model_dump(mode="json")
    return sorted(name for name, value in spec.settings.items() if wanted.get(name, value) != value)


def _resolved(join: str) -> str:
    """``HOST:PORT`` with the host as an address. Raises ``CommandError``."""
    host, colon, port = join.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise UsageError(f"--join takes HOST:PORT, not {join!r}")
    try:
        address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise CommandError(f"cannot resolve the head's name {host!r}: {error}") from error
    if address in (LOOPBACK, "::1"):
        raise CommandError(
            f"{join} is the loopback of this machine; start the head with --node-address and an address that the "
            "nodes can reach"
        )
    return f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"


def _read_token(path: Path) -> str:
    try:
        status = path.stat()
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read the token file: {error}") from error
    if others_may(status, os.geteuid()):
        raise CommandError(
            f"{path} is readable by others, and the token gives control of the cluster: chmod 600 {path}"
        )
    if not token or not token.isascii() or len(token) > 1000 or any(c.isspace() for c in token):
        raise CommandError(f"{path} contains no token; copy the file that `tidegauge up` prints on the head")
    return token


def _make_certificates(settings: Settings, files: StateFiles, address: str) -> None:
    """Raise ``UsageError`` if TLS is asked for and cannot be had."""
    from tidegauge.cluster.ray_service.engine_tls import make_certificates, tls_files

    given = [settings.engine_tls_cert_file, settings.engine_tls_key_file, settings.engine_tls_ca_file]
    if any(given) and not (all(given) and settings.engine_tls):
        raise UsageError(
            "engine_tls=true, engine_tls_cert_file, engine_tls_key_file and engine_tls_ca_file go together"
        )
    tls = tls_files(settings.model_dump(), str(files.root))
    if tls is not None and not any(given):
        need("cryptography", extra="tls", what="engine_tls")
        make_certificates(tls, files.token.read_text().strip(), address)
    if tls is not None:
        try:
            tls.context()
        except OSError as error:
            raise UsageError(f"engine_tls: the certificate cannot be used: {error}") from error


def _check_node_ports(settings: Settings, node_address: str) -> None:
    """Raise ``CommandError`` if the engine could not listen on this node: Ray would say so after half a minute."""
    from tidegauge.cluster.ray_service.node_command import PORT_OPTIONS, node_ports

    ports = node_ports(settings.model_dump()) or range(0)
    for name in ("engine_port", "api_port", "metrics_port", "notify_port"):
        if getattr(settings, name) in ports:
            raise UsageError(f"{name}: {getattr(settings, name)} is one of engine_node_ports; choose others")
    for port in ports[: len(PORT_OPTIONS)]:
        _check_port(node_address, port, "--set engine_node_ports=FIRST-LAST (0: any free ones)")


def _check_port(address: str, port: int, choose: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise CommandError(
                f"cannot use port {port} on {address}: {error.strerror}; choose another with {choose}"
            ) from error


def _engine_port(settings: Settings, node_address: str) -> int:
    from tidegauge.cluster.ray_service.node_command import free_ports

    if settings.engine_port == 0:
        return free_ports(1)[0]
    _check_port(node_address, settings.engine_port, "--set engine_port=PORT (0: any free one)")
    return settings.engine_port


def _if_taken(spec: NodeSpec, setting: str, address: str) -> str:
    """The remark that another port than the configured one is used."""
    wanted = spec.settings.get(setting)
    return f"   ({setting} {wanted} was taken)" if wanted and not address.endswith(f":{wanted}") else ""


def _tell(files: StateFiles, record: ServiceRecord, *, as_json: bool, already: bool) -> None:
    from tidegauge.cluster.service_record import read_address

    spec = record.spec
    api, metrics = read_address(files.api), read_address(files.agent)
    if as_json:
        values = {
            "already_up": already, "role": "head" if spec.is_head else "node", "head_address": spec.head_address,
            "node_address": spec.node_address, "token_file": spec.token_file, "api_url": api,
            "metrics_address": metrics, "state_dir": spec.state_dir, "supervisor_pid": record.supervisor.pid,
            "warning": _warning(spec),
        }  # fmt: skip
        print_json(values)
        return
    print(f"{'already up' if already else 'up'}: {'head' if spec.is_head else 'node of head'} {spec.head_address}")
    if api:
        print(f"API and /sd   {api}{_if_taken(spec, 'api_port', api)}")
    if metrics:
        scheme, bound = split_scheme(metrics)
        print(f"metrics       {scheme}://{bound}/metrics{_if_taken(spec, 'metrics_port', metrics)}")
    if spec.is_head and spec.node_address != LOOPBACK:
        print(
            f"other nodes   tidegauge up --join {spec.head_address} --token-file FILE   (a copy of {spec.token_file})"
        )
    elif spec.is_head:
        print("other nodes   cannot join: this head listens on loopback only (see --node-address)")
    if spec.node_address != LOOPBACK and str(spec.settings.get("listen_host", "")).startswith("127."):
        print("warning       /metrics listens on loopback, so Prometheus on another host cannot scrape this node;")
        print("              to change that, start with --set listen_host=0.0.0.0")
    if (warning := _warning(spec)) is not None:
        print_wrapped("warning       ", warning)
    print(f"logs          {files.logs}")
    print("next          tidegauge status, tidegauge run -- CMD, tidegauge jobs, tidegauge down")
