"""What a hostile agent gets of the opener."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from integration.needs import missing
from integration.security.opener_rig import (
    FUSE,
    REFUSED,
    SERVICE,
    RunningOpener,
    gets_an_answer,
    held,
    outcome,
    run_as,
    until,
)
from integration.security.users import ADA, MALLORY, Machine
from tidegauge.agent.opening.remote import RemoteOpener
from tidegauge.agent.opening.wire import Kind, OpenerRequest, encode_request
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import evidence_name, ring_name, socket_name
from tidegauge.opener.places import MAX_CONNECTIONS
from tidegauge.osproc.processes import identity_of

pytestmark = pytest.mark.timeout(300)
FLOOD = 100_000


class Trap:
    """A user's folder with things that an agent must not be led to."""

    def __init__(self, node: Machine) -> None:
        self.folder = node.run_dir / str(ADA)
        self.folder.mkdir()
        self.folder.chmod(0o700)
        self.secret = node.run_dir.parent / "secret"
        self.secret.write_text("root's word")
        self.secret.chmod(0o600)
        os.chown(self.folder, ADA, ADA)

    def path(self, number: int) -> Path:
        return self.folder / ring_name(ProcessId(number, 1))


def refusals(opener: RunningOpener, names: list[str]) -> dict[str, str]:
    """What became of each name, asked as the service's user in the user's folder; ``got`` for a descriptor."""

    folder = OpenerRequest(Kind.FOLDER, uid=ADA)
    return run_as(
        SERVICE, lambda: {name: outcome(opener, OpenerRequest(Kind.OPEN, name=name), after=folder) for name in names}
    )


def test_names_that_are_no_files_of_a_probe_are_refused(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    for name in ("id_rsa", "1-1.ring.txt", "x-1.ring"):
        (trap.folder / name).touch()
        os.chown(trap.folder / name, ADA, ADA)
    known = ["id_rsa", "1-1.ring.txt", "x-1.ring", "1-1.sh"]
    assert refusals(opener, known) == dict.fromkeys(known, REFUSED)
    paths = ["../../secret", "/etc/shadow", "..", ".", "1-1.ring/../../x", "1-1.ring\0/x", "1-1.ri\u0144g"]
    assert refusals(opener, paths) == dict.fromkeys(paths, "OpenerAwayError"), "it hangs up"


def test_links_fifos_and_files_of_others_are_refused(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    trap.path(1).symlink_to(trap.secret)
    os.mkfifo(trap.path(2))
    os.link(trap.secret, trap.path(3))
    shutil.copy(trap.secret, trap.path(4))  # root's
    trap.path(5).mkdir()
    shutil.copy(trap.secret, trap.path(6))
    os.mknod(trap.path(7), stat.S_IFCHR | 0o666, os.makedev(1, 3))
    for number in (2, 5, 6, 7):
        os.chown(trap.path(number), ADA, ADA)
    names = [trap.path(number).name for number in range(1, 9)]
    found = refusals(opener, names)
    assert list(found.values()) == [
        "symlink", "not_regular", "owner", "owner", "not_regular", "got", "not_regular", "FileNotFoundError",
    ]  # fmt: skip


def test_another_mount_is_refused(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    trap.path(1).touch()
    os.chown(trap.path(1), ADA, ADA)
    subprocess.run(["mount", "--bind", "/etc/hostname", trap.path(1)], check=True)
    try:
        assert refusals(opener, [trap.path(1).name]) == {trap.path(1).name: "mount"}
    finally:
        subprocess.run(["umount", trap.path(1)], check=True)


def test_a_folder_of_another_user_or_a_link_is_refused(node: Machine, opener: RunningOpener) -> None:
    (node.run_dir / "0").symlink_to("/root")
    (node.run_dir / str(MALLORY)).mkdir()

    places = ((0, 0), (0, MALLORY), (0, ADA), (7, ADA))
    assert run_as(
        SERVICE, lambda: [outcome(opener, OpenerRequest(Kind.FOLDER, number, uid=uid)) for number, uid in places]
    ) == ["symlink", "owner", "FileNotFoundError", REFUSED]


def test_a_process_is_the_one_that_was_asked_for_or_none(node: Machine, opener: RunningOpener) -> None:
    """A pid that was used again, a namespace that it is not in, a socket that another process serves."""
    ada = node.act(ADA, "trains", "adas", 0)
    process = identity_of(ada.pid)
    assert process is not None
    namespace = os.stat(f"/proc/{ada.pid}/ns/mnt").st_ino
    name = socket_name(process)
    until(lambda: (node.run_dir / str(ADA) / name).exists(), "it listens")

    def tries() -> list[str]:
        enter = OpenerRequest(Kind.ENTER, pid=process.pid, start_ticks=process.start_ticks, inode=namespace)
        folder = OpenerRequest(Kind.FOLDER, uid=ADA)
        connect = OpenerRequest(Kind.CONNECT, uid=ADA, pid=process.pid, start_ticks=process.start_ticks, name=name)
        return [
            *(outcome(opener, one) for one in (enter, enter._replace(start_ticks=1), enter._replace(inode=1))),
            *(outcome(opener, one, after=folder) for one in (
                connect, connect._replace(start_ticks=1), connect._replace(pid=os.getpid()),
                connect._replace(uid=MALLORY),
            )),
        ]  # fmt: skip

    gone = "ProcessLookupError"
    assert run_as(SERVICE, tries) == ["done", gone, gone, "got", gone, gone, "socket"]


def test_a_socket_of_root_in_a_users_folder_is_not_connected_to(node: Machine, opener: RunningOpener) -> None:
    """The request names the uid: with another's than the folder's, any daemon's socket would do."""
    trap, this = Trap(node), identity_of(os.getpid())
    assert this is not None
    name = socket_name(this)
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(trap.folder / name))
        daemon.listen()
        connect = OpenerRequest(Kind.CONNECT, uid=0, pid=this.pid, start_ticks=this.start_ticks, name=name)
        assert run_as(SERVICE, lambda: outcome(opener, connect, after=OpenerRequest(Kind.FOLDER, uid=ADA))) == "socket"


def test_nothing_in_place_of_the_kubelets_socket_is_connected_to(opener: RunningOpener) -> None:
    """The folder is root's; a request cannot name another one."""
    ask = OpenerRequest(Kind.KUBELET, name="1-1.ring")
    found = [run_as(SERVICE, lambda: outcome(opener, ask))]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(opener.kubelet))
        server.listen()
        found.append(run_as(SERVICE, lambda: outcome(opener, ask)))
        os.chown(opener.kubelet, MALLORY, MALLORY)
        found.append(run_as(SERVICE, lambda: outcome(opener, ask)))
        opener.kubelet.rename(opener.kubelet.with_name("another"))
        opener.kubelet.symlink_to("another")
        found.append(run_as(SERVICE, lambda: outcome(opener, ask)))
    assert found == ["FileNotFoundError", "got", "socket", "socket"]


def test_the_kubelet_is_not_flooded_with_connections(opener: RunningOpener) -> None:
    def flood() -> float:
        began_s = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            [*pool.map(lambda _: outcome(opener, OpenerRequest(Kind.KUBELET)), range(4))]
        return time.monotonic() - began_s

    assert run_as(SERVICE, flood) > 2.5, "one a second, after the first"


def test_a_file_of_any_time_costs_nobody_the_connection(node: Machine, opener: RunningOpener) -> None:
    trap = Trap(node)
    for number, at_s in ((1, -(10**9)), (2, -(2**62)), (3, 2**62)):
        trap.path(number).touch()
        os.utime(trap.path(number), (0, at_s))
        os.chown(trap.path(number), ADA, ADA)
    names = [trap.path(number).name for number in (1, 2, 3)]
    assert refusals(opener, names) == dict.fromkeys(names, "got")


def test_a_link_in_place_of_the_settings_folder_is_not_followed(node: Machine, opener: RunningOpener) -> None:
    """It may lead to a file system that never answers: a thread of the opener's would be lost with each request."""
    if not Path("/dev/fuse").exists():
        missing("this kernel has no FUSE")
    silent = node.run_dir.parent / "silent"
    silent.mkdir()
    (node.run_dir / "jobs").symlink_to(silent)
    os.chown(node.run_dir / "jobs", MALLORY, MALLORY, follow_symlinks=False)
    write = OpenerRequest(Kind.WRITE_SETTINGS, name="7.json", tail=b"x")
    with subprocess.Popen([sys.executable, FUSE, silent], stdout=subprocess.PIPE, text=True) as mount:
        assert mount.stdout is not None
        assert mount.stdout.readline() == "mounted\n"
        try:
            assert run_as(SERVICE, lambda: outcome(opener, write)) == "owner"
        finally:
            subprocess.run(["umount", "--lazy", silent], check=True)
            mount.kill()


def test_what_a_living_process_writes_is_not_deleted(node: Machine, opener: RunningOpener) -> None:
    ada = node.act(ADA, "trains", "adas", 0)
    process = identity_of(ada.pid)
    assert process is not None
    ring = node.run_dir / str(ADA) / ring_name(process)
    until(ring.exists, "the ring is there")
    status = ring.stat()

    folder = OpenerRequest(Kind.FOLDER, uid=ADA)
    delete = OpenerRequest(Kind.DELETE, device=status.st_dev, inode=status.st_ino, name=ring.name)
    requests = (delete, delete._replace(kind=Kind.DELETE_BESIDE))
    found = run_as(SERVICE, lambda: [outcome(opener, request, after=folder) for request in requests])
    assert found == [REFUSED, REFUSED]
    assert ring.exists()


def test_an_evil_agent_gets_files_of_probes_and_no_other_word_of_a_process(
    node: Machine, opener: RunningOpener
) -> None:
    """With the opener: what the agent's work is. With its own rights: nothing."""
    ada = node.act(ADA, "trains", "adas", 0)
    process = identity_of(ada.pid)
    assert process is not None
    folder = node.run_dir / str(ADA)
    until((folder / ring_name(process)).exists, "the ring is there")

    def own_rights() -> list[str]:
        return [
            path.name for path in (
                folder / ring_name(process), Path(f"/proc/{ada.pid}/environ"), Path(f"/proc/{ada.pid}/root/etc/passwd"),
                Path(f"/proc/{ada.pid}/mem"), Path(f"/proc/{opener.process.pid}/environ"), Path("/etc/shadow"),
            ) if not os.access(path, os.R_OK)
        ]  # fmt: skip

    def by_the_opener() -> list[str]:
        got = []
        with closing(RemoteOpener(opener.socket)) as remote:
            got += ["smaps_rollup"] * remote.smaps_rollup(ada.pid).endswith("kB\n")
            assert remote.mount_namespace(ada.pid) == mount_namespace
            with held(remote, folder) as there:
                descriptor, _ = there.open_checked(ring_name(process))
                got += ["ring"] * bool(os.pread(descriptor, 8, 0))
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.write(descriptor, b"x")
                with pytest.raises(FileNotFoundError):
                    there.open_checked(evidence_name(process))
                assert ring_name(process) in there.names(100)
        return got

    mount_namespace = os.stat(f"/proc/{ada.pid}/ns/mnt").st_ino
    assert run_as(SERVICE, own_rights) == [ring_name(process), "environ", "passwd", "mem", "environ", "shadow"]
    assert run_as(SERVICE, by_the_opener) == ["smaps_rollup", "ring"]


def test_an_evil_agent_gets_no_folder_by_which_a_containers_root_is_reached(
    node: Machine, opener: RunningOpener
) -> None:
    """From a descriptor of one, ".." leads up to all that everybody may read in the container."""
    Trap(node)
    script = "mount -t tmpfs none /mnt && echo ready && exec cat"
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as inside:
        assert inside.stdout is not None
        assert inside.stdout.readline() == "ready\n"
        process, namespace = identity_of(inside.pid), os.stat(f"/proc/{inside.pid}/ns/mnt").st_ino
        assert process is not None
        enter = OpenerRequest(Kind.ENTER, pid=process.pid, start_ticks=process.start_ticks, inode=namespace)
        requests = (OpenerRequest(Kind.RUN_DIR), OpenerRequest(Kind.FOLDER, is_inside=True, uid=ADA))
        found = run_as(SERVICE, lambda: [outcome(opener, one, after=enter) for one in requests])
        inside.kill()
    assert found == ["done", "done"], "no descriptor came"


def test_settings_have_names_of_their_own_and_bounds(node: Machine, opener: RunningOpener) -> None:
    files = (("passwd", 1), ("..json", 1), ("7.json", 16384), ("8.json", 16385))
    writes = [OpenerRequest(Kind.WRITE_SETTINGS, name=name, tail=b"x" * size) for name, size in files]
    make = OpenerRequest(Kind.MAKE_SETTINGS)
    assert run_as(SERVICE, lambda: [outcome(opener, write, after=make) for write in writes]) == [
        REFUSED, REFUSED, "done", "OpenerAwayError",
    ]  # fmt: skip
    assert os.listdir(node.run_dir / "jobs") == ["7.json"]


def raw(opener: RunningOpener) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(str(opener.socket))  # without a time limit: it waits for its turn
    connection.settimeout(60)
    return connection


def test_malformed_messages_end_their_connection_and_leave_nothing_open(node: Machine, opener: RunningOpener) -> None:
    Trap(node)
    good = encode_request(OpenerRequest(Kind.RUN_DIRS))

    def send() -> list[bytes]:
        ended = []
        for packet in (b"x", good[:-1], b"\xff" + good[1:], good[:1] + b"\x63" + good[2:], good + b"y" * 20_000):
            with raw(opener) as connection:
                connection.send(packet)
                ended.append(connection.recv(100))
        with raw(opener) as connection, open("/dev/null") as null:
            socket.send_fds(connection, [good], [null.fileno()] * 5)
            ended.append(connection.recv(100))
        for _ in range(200):  # holds a folder, asks for descriptors, goes without a word
            with raw(opener) as connection:
                connection.send(encode_request(OpenerRequest(Kind.FOLDER, uid=ADA)))
                connection.recv(1000)
        return ended

    before = opener.open_files
    assert run_as(SERVICE, send) == [b""] * 6
    until(lambda: opener.open_files <= before, "all is closed")


def test_a_flood_of_requests_and_a_client_that_never_reads_hold_up_nobody(node: Machine, opener: RunningOpener) -> None:
    Trap(node)
    pids = struct.pack("<1024I", *range(1, 1025))

    def flood() -> float:
        deaf = raw(opener)
        deaf.setblocking(False)
        folder = encode_request(OpenerRequest(Kind.FOLDER, uid=ADA))
        many = encode_request(OpenerRequest(Kind.MOUNT_NAMESPACES, tail=pids))
        with suppress(BlockingIOError):
            for _ in range(FLOOD):
                deaf.send(folder)
                deaf.send(many)
            raise AssertionError("it takes all that is sent")
        child = os.fork()
        if child == 0:
            loud = raw(opener)
            for _ in range(FLOOD):
                loud.send(encode_request(OpenerRequest(Kind.RUN_DIRS)))
                loud.recv(10_000)
            os._exit(0)
        slowest_s = 0.0
        with closing(RemoteOpener(opener.socket)) as remote:
            ended = 0
            while not ended:
                began_s = time.monotonic()
                remote.owner_of_user_namespace(os.getpid())
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                time.sleep(0.01)
                ended, _ = os.waitpid(child, os.WNOHANG)
        deaf.close()
        return slowest_s

    before_kib = _resident_kib(opener)
    assert run_as(SERVICE, flood) < 10
    assert _resident_kib(opener) - before_kib < 32 << 10
    assert opener.process.poll() is None


def is_answered(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(1000))
    except ConnectionResetError:  # closed before the request was read
        return False


def test_few_descriptors_are_on_their_way_to_clients_that_do_not_read(node: Machine, opener: RunningOpener) -> None:
    """The kernel counts them to root: with too many, no process of root's could send one."""
    trap = Trap(node)
    trap.path(1).touch()
    os.chown(trap.path(1), ADA, ADA)
    folder = encode_request(OpenerRequest(Kind.FOLDER, uid=ADA))
    ring = encode_request(OpenerRequest(Kind.OPEN, name=trap.path(1).name))

    def ask_and_count() -> list[int]:
        found = []
        for _ in range(10):
            with raw(opener) as deaf:
                deaf.send(folder)
                assert deaf.recv(1000)
                deaf.setblocking(False)
                with suppress(BlockingIOError):
                    while True:
                        deaf.send(ring)
                hung_up = select.poll()
                hung_up.register(deaf, select.POLLRDHUP)
                assert hung_up.poll(60_000)
                deaf.settimeout(60)
                found.append(0)
                while (received := socket.recv_fds(deaf, 1000, 1))[0]:
                    found[-1] += len(received[1])
                    for descriptor in received[1]:
                        os.close(descriptor)
        return found

    assert run_as(SERVICE, ask_and_count) == [1] * 10


def idle(opener: RunningOpener) -> list[socket.socket]:
    return [raw(opener) for _ in range(2 * MAX_CONNECTIONS)]


def holding(opener: RunningOpener) -> list[socket.socket]:
    """Connections that hold a folder each, and say no more."""
    crowd = []
    for _ in range(2 * MAX_CONNECTIONS):
        crowd.append(raw(opener))
        crowd[-1].send(encode_request(OpenerRequest(Kind.FOLDER, uid=ADA)))
        is_answered(crowd[-1])
    return crowd


def deaf(opener: RunningOpener) -> list[socket.socket]:
    """Connections that leave a descriptor each unread, and cannot be let go."""
    crowd = holding(opener)
    for one in crowd:
        with suppress(BrokenPipeError):
            one.send(encode_request(OpenerRequest(Kind.SMAPS_ROLLUP, pid=os.getpid())))
    return crowd


@contextmanager
def beside(*attacks: Callable[[], list[socket.socket]]) -> Iterator[None]:
    """Each attack in a child of its own, which keeps its connections until the end of the block."""
    (is_ready, ready), (go_on, end) = os.pipe(), os.pipe()
    children = []
    for attack in attacks:
        children.append(os.fork())
        if children[-1] == 0:
            os.close(end)
            held = attack()
            os.write(ready, b"x")
            os.read(go_on, 1)
            held.clear()
            os._exit(0)
    for _ in children:
        os.read(is_ready, 1)
    try:
        yield
    finally:
        os.close(end)
        for child in children:
            os.waitpid(child, 0)


@pytest.mark.parametrize("crowd", [idle, holding, deaf])
def test_one_process_of_the_agents_user_cannot_take_all_places(
    node: Machine, opener: RunningOpener, crowd: Callable[[RunningOpener], list[socket.socket]]
) -> None:
    Trap(node)

    def attack() -> bool:
        with beside(lambda: crowd(opener)):
            return all(gets_an_answer(opener) for _ in range(3))

    assert run_as(SERVICE, attack)


def test_idle_connections_of_many_processes_of_the_agents_user_leave_it_a_place(opener: RunningOpener) -> None:
    def attack() -> bool:
        with beside(*[lambda: [raw(opener)]] * (MAX_CONNECTIONS + 8)):
            return all(gets_an_answer(opener) for _ in range(3))

    assert run_as(SERVICE, attack)
    until(lambda: opener.open_files < MAX_CONNECTIONS, "places come free")


def test_an_agent_whose_idle_connections_gave_way_goes_on(opener: RunningOpener) -> None:
    def attack() -> bool:
        with closing(RemoteOpener(opener.socket)) as remote:
            remote.check()
            with beside(*[lambda: [raw(opener)]] * (MAX_CONNECTIONS + 8)):
                remote.check()
        return True

    assert run_as(SERVICE, attack)


def test_an_agent_waits_for_its_turn_where_connections_are_not_taken_at_once(opener: RunningOpener) -> None:
    is_full, full = os.pipe()

    def in_a_queue() -> bool:
        queue = []
        with suppress(BlockingIOError):
            while True:
                queue.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
                queue[-1].setblocking(False)
                queue[-1].connect(str(opener.socket))
        os.write(full, b"x")
        return gets_an_answer(opener)

    opener.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run_as, SERVICE, in_a_queue)
        os.read(is_full, 1)
        opener.process.send_signal(signal.SIGCONT)
        assert answer.result()
    os.close(is_full)
    os.close(full)


def _resident_kib(opener: RunningOpener) -> int:
    for line in Path(f"/proc/{opener.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")
