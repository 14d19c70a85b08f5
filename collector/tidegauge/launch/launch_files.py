"""The keeper's two files beside the rings: the record of its job, and the socket for requests."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Optional

from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.launches import LaunchRecord, encode_launch_record
from tidegauge.core.run_dirs import RING_SUFFIX, launch_draft_name, launch_name, launch_socket_name
from tidegauge.probe.run_files.command_socket import Answer, CommandSocket
from tidegauge.probe.run_files.own_user import allowed_peers
from tidegauge.probe.run_files.run_folder import RunFolder, open_any_run_folder

TOUCH_EVERY_S = 60.0
"""As probes do with their rings: a file that nobody touched for long may be removed by another pid namespace."""


class LaunchFiles:
    """The files of the keeper ``process`` in one run folder. Methods raise ``OSError``."""

    def __init__(self, folder: RunFolder, process: ProcessId) -> None:
        self._folder = folder
        self._process = process

    @property
    def descriptor(self) -> int:
        """Descriptor of the user's folder, which also holds the rings of the job's ranks."""
        return self._folder.descriptor

    def write(self, record: LaunchRecord) -> None:
        """Replace the record: a reader sees the old one or the new one, never a part."""
        draft = launch_draft_name(self._process)
        descriptor = self._folder.create(draft)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(encode_launch_record(record))
            folder = self._folder.descriptor
            os.rename(draft, launch_name(self._process), src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                self._folder.remove(draft)
            raise

    def listen(self, answer: Answer) -> CommandSocket:
        """The socket, for root and this user."""
        return CommandSocket(self._folder, launch_socket_name(self._process), answer, allowed_uids=allowed_peers())

    def touch(self) -> None:
        """Show that the keeper lives."""
        for name in (launch_name(self._process), launch_socket_name(self._process)):
            os.utime(name, dir_fd=self._folder.descriptor, follow_symlinks=False)

    def close(self, *, keep_record: bool = False) -> None:
        """Remove the files. ``keep_record``: if ranks left rings, whoever reads them reads how the job ended, too, and
        removes the record as it does theirs."""
        names = [launch_socket_name(self._process)]
        if not keep_record or not self._has_rings():
            names.append(launch_name(self._process))
        for name in names:
            with contextlib.suppress(OSError):
                self._folder.remove(name)
        self._folder.close()

    def _has_rings(self) -> bool:
        with contextlib.suppress(OSError), os.scandir(self._folder.descriptor) as entries:
            return any(entry.name.endswith(RING_SUFFIX) for entry in entries)
        return False


def open_launch_files(environ: Mapping[str, str], process: ProcessId) -> Optional[LaunchFiles]:
    """Open the first usable run directory and remove dead processes' files; ``None`` where there is none."""
    folder = open_any_run_folder(environ)
    if folder is None:
        return None
    with contextlib.suppress(OSError):
        folder.remove_leftovers()
    return LaunchFiles(folder, process)
