"""Carries out the requests of one connection: checks each against rules of its own and the kernel's word.

A request can name a run directory of this opener's list, a uid, a process, and a file name of those that probes make:
no path; the kubelet's socket is where the opener was told. What a connection holds (a namespace, a folder) is let go
when it asks for the next, or ends.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from tidegauge.agent.opening.local import LOCAL, LocalFolder, LocalRunDir, open_folder
from tidegauge.agent.opening.peers import peer_of
from tidegauge.agent.opening.safe_files import DIRECTORY, Signature, UnsafeFileError, closing_fd
from tidegauge.agent.opening.ways_in import Entered, entered
from tidegauge.agent.opening.wire import (
    MAX_ENTRIES,
    MAX_NAMES,
    MAX_PIDS,
    NAMES_EACH,
    EntryOfRunDir,
    Kind,
    OpenerReply,
    OpenerRequest,
    encode_entries,
    is_of_a_process,
    is_of_settings,
)
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat, parse_proc_stat
from tidegauge.core.run_dirs import process_of

MAX_SETTINGS_FILES = 20_000
"""As many as an agent looks at (``agent.job_settings``)."""
_PROC_FILE = os.O_RDONLY | os.O_CLOEXEC

Answer = tuple[OpenerReply, "int | None"]
"""With a descriptor to hand over, or none."""


class NotByRulesError(OSError):
    """Not by these rules."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "not by the opener's rules")


class OpenerActs:
    """For one connection and one thread. Each act raises ``OSError`` and ``UnsafeFileError``."""

    def __init__(self, run_dirs: Sequence[Path], kubelet: Path) -> None:
        self._run_dirs = tuple(run_dirs)
        self._kubelet_socket = kubelet
        self._held = ExitStack()
        self._namespace: Entered | None = None
        self._folder: LocalFolder | None = None
        self._listing: Iterator[os.DirEntry[str]] = iter(())
        """The rest of the folder's names."""
        self._is_inside = False
        """Whether the folder is in a container."""
        self._acts: Mapping[Kind, Callable[[OpenerRequest], Answer]] = {
            Kind.RUN_DIRS: self._name_run_dirs,
            Kind.ENTER: self._enter,
            Kind.RUN_DIR: self._run_dir_inside,
            Kind.FOLDER: self._hold_folder,
            Kind.LOOK: self._look,
            Kind.OPEN: self._open,
            Kind.CONNECT: self._connect,
            Kind.DELETE: self._delete,
            Kind.DELETE_BESIDE: self._delete_beside,
            Kind.LEAVE: self._leave,
            Kind.MOUNT_NAMESPACES: self._mount_namespaces,
            Kind.USER_NAMESPACE: self._user_namespace,
            Kind.SMAPS_ROLLUP: self._smaps_rollup,
            Kind.MAKE_SETTINGS: self._make_settings,
            Kind.WRITE_SETTINGS: self._write_settings,
            Kind.DELETE_SETTINGS: self._delete_settings,
            Kind.LIST: self._list,
            Kind.KUBELET: self._kubelet,
        }

    @property
    def holds_something(self) -> bool:
        return self._namespace is not None or self._folder is not None

    def act(self, request: OpenerRequest) -> Answer:
        """The descriptor is the caller's to close."""
        if request.tail and request.kind not in (Kind.MOUNT_NAMESPACES, Kind.WRITE_SETTINGS):
            raise NotByRulesError
        return self._acts[request.kind](request)

    def let_go(self) -> None:
        self._folder = self._namespace = None
        self._listing = iter(())
        self._held.close()

    def _name_run_dirs(self, _: OpenerRequest) -> Answer:
        return OpenerReply(tail=b"\0".join(os.fsencode(path) for path in self._run_dirs)), None

    def _enter(self, request: OpenerRequest) -> Answer:
        self.let_go()
        process = ProcessId(request.pid, request.start_ticks)
        self._namespace = self._held.enter_context(entered(process, request.inode, LOCAL.proc))
        return OpenerReply(), None

    def _run_dir_inside(self, request: OpenerRequest) -> Answer:
        with LocalRunDir.of(self._inside().open(self._run_dir(request))) as run_dir:
            uids, names = run_dir.uids(MAX_NAMES)
            entries = [_entry_of(run_dir, name, uids[name]) for name in islice(uids, MAX_ENTRIES)]
            signature = Signature.of(os.fstat(run_dir.fd))
        number = names if len(entries) == len(uids) else MAX_NAMES
        return OpenerReply(number, signature, encode_entries(entries)), None

    def _hold_folder(self, request: OpenerRequest) -> Answer:
        path = self._run_dir(request)
        if request.is_inside:
            if self._folder is not None:
                raise NotByRulesError
            run_dir = self._inside().open(path)
        else:
            self.let_go()
            run_dir = os.open(path, DIRECTORY)
        with closing_fd(run_dir):
            self._folder = open_folder(run_dir, request.uid, is_owners=not request.is_inside)
            self._held.enter_context(self._folder)
            self._is_inside = request.is_inside
            return OpenerReply(self._folder.uid, Signature.of(os.fstat(run_dir))), None

    def _list(self, request: OpenerRequest) -> Answer:
        if self._folder is None:
            raise NotByRulesError
        if not request.is_inside:
            self._listing = self._held.enter_context(os.scandir(self._folder.fd))
        names = [os.fsencode(entry.name) for entry in islice(self._listing, NAMES_EACH)]
        return OpenerReply(tail=b"\0".join(names)), None

    def _look(self, request: OpenerRequest) -> Answer:
        return OpenerReply(signature=self._in_folder(request).look_at(request.name)), None

    def _open(self, request: OpenerRequest) -> Answer:
        descriptor, signature = self._in_folder(request).open_checked(request.name)
        return OpenerReply(signature=signature), descriptor

    def _connect(self, request: OpenerRequest) -> Answer:
        process = ProcessId(request.pid, request.start_ticks)
        connection = self._in_folder(request).connected(request.name, process, request.uid)
        with connection:
            seen = _stat_of(request.pid)
            if peer_of(connection) != (request.pid, request.uid) or seen is None or seen.process != process:
                raise ProcessLookupError(errno.ESRCH, "another process listens there")
            return OpenerReply(), connection.detach()

    def _delete(self, request: OpenerRequest) -> Answer:
        self._of_an_ended_process(request).delete_file(request.name, request.device, request.inode)
        return OpenerReply(), None

    def _delete_beside(self, request: OpenerRequest) -> Answer:
        self._of_an_ended_process(request).delete_beside(request.name, is_socket=request.is_inside)
        return OpenerReply(), None

    def _leave(self, _: OpenerRequest) -> Answer:
        self.let_go()
        return OpenerReply(), None

    def _mount_namespaces(self, request: OpenerRequest) -> Answer:
        if len(request.tail) % 4 or len(request.tail) > 4 * MAX_PIDS:
            raise NotByRulesError
        pids = [pid for (pid,) in struct.iter_unpack("<I", request.tail)]
        found = [inode or 0 for inode in LOCAL.mount_namespaces(pids)]
        return OpenerReply(tail=struct.pack(f"<{len(found)}Q", *found)), None

    def _user_namespace(self, request: OpenerRequest) -> Answer:
        owner = LOCAL.owner_of_user_namespace(request.pid)
        return OpenerReply(0 if owner is None else owner + 1), None

    def _smaps_rollup(self, request: OpenerRequest) -> Answer:
        return OpenerReply(), os.open(f"/proc/{request.pid}/smaps_rollup", _PROC_FILE)

    def _kubelet(self, _: OpenerRequest) -> Answer:
        return OpenerReply(), LOCAL.kubelet(self._kubelet_socket).detach()

    def _make_settings(self, request: OpenerRequest) -> Answer:
        LOCAL.make_settings_folder(self._run_dir(request))
        return OpenerReply(), None

    def _write_settings(self, request: OpenerRequest) -> Answer:
        run_dir, name = self._run_dir(request), self._settings_name(request)
        names = LOCAL.settings_files(run_dir)
        if len(names) >= MAX_SETTINGS_FILES and name not in names:
            raise NotByRulesError
        LOCAL.write_settings(run_dir, name, request.tail)
        return OpenerReply(), None

    def _delete_settings(self, request: OpenerRequest) -> Answer:
        LOCAL.delete_settings(self._run_dir(request), self._settings_name(request))
        return OpenerReply(), None

    def _run_dir(self, request: OpenerRequest) -> Path:
        if request.run_dir >= len(self._run_dirs):
            raise NotByRulesError
        return self._run_dirs[request.run_dir]

    def _inside(self) -> Entered:
        if self._namespace is None:
            raise NotByRulesError
        return self._namespace

    def _in_folder(self, request: OpenerRequest) -> LocalFolder:
        if self._folder is None or not is_of_a_process(request.name):
            raise NotByRulesError
        return self._folder

    def _of_an_ended_process(self, request: OpenerRequest) -> LocalFolder:
        """Nobody deletes what a living process of the node writes. In a container the name has another pid."""
        folder, process = self._in_folder(request), process_of(request.name)
        seen = None if process is None or self._is_inside else _stat_of(process.pid)
        if seen is not None and seen.process == process and not seen.ended:
            raise NotByRulesError
        return folder

    @staticmethod
    def _settings_name(request: OpenerRequest) -> str:
        if not is_of_settings(request.name):
            raise NotByRulesError
        return request.name


def _entry_of(run_dir: LocalRunDir, name: str, inode: int) -> EntryOfRunDir:
    """One that is gone or has something mounted over it has no mode."""
    try:
        seen = run_dir.look_at(name)
    except (OSError, UnsafeFileError):
        return EntryOfRunDir(int(name), inode, 0, 0, 0)
    return EntryOfRunDir(int(name), inode, seen.mtime_ns, seen.mode, seen.uid)


def _stat_of(pid: int) -> ProcStat | None:
    try:
        with closing_fd(os.open(f"/proc/{pid}/stat", _PROC_FILE)) as descriptor:
            return parse_proc_stat(os.read(descriptor, 4096).decode(errors="replace"))
    except OSError:
        return None
