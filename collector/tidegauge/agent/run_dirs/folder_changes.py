"""Detects by its mtime whether a user's folder must be listed again: names came or went since the last listing."""

from __future__ import annotations

from collections.abc import Collection

from tidegauge.agent.run_dirs.folders import UserFolder


class FolderChanges:
    """Tracks changes of many folders. For one thread.

    The kernel's timestamps are some milliseconds coarse: a folder counts as settled only if at the following look
    its mtime is still the one before the listing.
    """

    def __init__(self) -> None:
        self._seen_ns: dict[UserFolder, int] = {}
        self._settled: set[UserFolder] = set()

    def must_list(self, folder: UserFolder, mtime_ns: int | None) -> bool:
        """Whether to list the folder; call once per look. ``mtime_ns``: read before the listing that may follow."""
        if mtime_ns is None:
            return True
        if self._seen_ns.get(folder) != mtime_ns:
            self._seen_ns[folder] = mtime_ns
            self._settled.discard(folder)
            return True
        if folder in self._settled:
            return False
        self._settled.add(folder)
        return True

    def unsettle(self, folder: UserFolder) -> None:
        """List it at the next look, too."""
        self._settled.discard(folder)

    def keep(self, folders: Collection[UserFolder]) -> None:
        """Forget all but these."""
        self._seen_ns = {folder: seen for folder, seen in self._seen_ns.items() if folder in folders}
        self._settled.intersection_update(folders)
