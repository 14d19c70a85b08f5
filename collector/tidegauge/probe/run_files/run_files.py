"""A process's presence in the run directory: its folder, and in it its ring file and its command socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from tidegauge.core.ids import RankIdentity
from tidegauge.core.run_dirs import socket_name
from tidegauge.probe.faults import Faults
from tidegauge.probe.identity import TorchFacts, claimed_place, identify
from tidegauge.probe.process_facts import OwnProcessFacts
from tidegauge.probe.run_files.command_socket import Answer, CommandSocket
from tidegauge.probe.run_files.evidence_files import EvidenceFiles
from tidegauge.probe.run_files.oom_snapshot import OomSnapshots
from tidegauge.probe.run_files.own_user import allowed_peers
from tidegauge.probe.run_files.ring_writer import RingWriter, open_ring
from tidegauge.probe.run_files.run_folder import RunFolder, open_any_run_folder
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.script import NOT_READ


class RunFiles:
    """One process's files, once its device has started. One that cannot be opened is reported once and left out."""

    def __init__(self, environ: Mapping[str, str], facts: OwnProcessFacts, backend: Backend, faults: Faults) -> None:
        self.ring: Optional[RingWriter] = None
        self.socket_path: Optional[str] = None
        self.identity: Optional[RankIdentity] = None
        """As it was last published."""
        self.oom_snapshots: Optional[OomSnapshots] = None
        self.evidence_files: Optional[EvidenceFiles] = None
        self.place_known = True
        """False while the published identity lacks a rank that the default process group may give later."""
        self.script = NOT_READ
        self._environ = environ
        self._facts = facts
        self._backend = backend
        self._faults = faults
        self._folders: list[RunFolder] = []
        """Open ones, the ring's last: a socket that was made while the process was dormant keeps its own."""

    def open_ring(self, devices: int) -> Optional[RingWriter]:
        """The ring, opened now if it was not before; ``None`` if there is no folder for it."""
        if self.ring is not None:
            return self.ring
        folder, self.ring, refused = open_ring(self._environ, self._facts.process, device_count=devices)
        if folder is None:
            because = "; ".join(refused)[:300]
            self._faults.say_once(f"nothing is recorded: no folder to write to ({because})")
            return None
        self._folders.append(folder)
        self.oom_snapshots = OomSnapshots(self._backend, folder, self._facts.process)
        self.evidence_files = EvidenceFiles(folder, self._facts.process)
        folder.remove_leftovers()
        return self.ring

    def publish(self, *, level: str, limit_fraction: Optional[float], checkpoint: Optional[str]) -> None:
        """Write the identity into the ring, if there is one; see ``identity.identify``."""
        if self.ring is None:
            return
        distributed = self._backend.distributed()
        self.place_known = distributed is not None or claimed_place(self._environ) is not None
        torch = TorchFacts(
            version=self._backend.torch_version,
            device_uuids=self._backend.device_uuids(self._environ),
            distributed=distributed,
        )
        self.identity = identify(
            self._environ,
            self._facts,
            torch,
            level=level,
            limit_fraction=limit_fraction,
            checkpoint=checkpoint,
            script=self.script,
        )
        self.ring.publish(self.identity)

    def open_socket(self, answer: Answer) -> Optional[CommandSocket]:
        """A socket for root and this user, or ``None`` if there is no folder for it."""
        if not self._folders:
            folder = open_any_run_folder(self._environ)
            if folder is None:
                return None
            self._folders.append(folder)
        try:
            commands = CommandSocket(
                self._folders[-1],
                socket_name(self._facts.process),
                answer,
                allowed_uids=allowed_peers(),
            )
        except OSError as error:
            self._faults.caught("opening its command socket", error)
            return None
        self.socket_path = commands.path
        return commands

    def abandon(self) -> None:
        """Release the parent's files in a forked child, without changing them."""
        if self.ring is not None:
            self.ring.abandon()
        for folder in self._folders:
            folder.close()
