"""The folder in which the processes of a job on one host meet."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO

__all__ = ["MeetingFolder"]

MOST_PATH_BYTES = 107  # of a Unix socket
NAME_BYTES = len("/hmc-run-01234567-01234567/rendezvous")
LOCK = "lock"


class MeetingFolder:
    """A new private folder with a locked file in it. Removed by :meth:`close`, or at the end of the process.

    Where the process is killed, the next MeetingFolder of this user, kernel and parent folder removes it: its file is not locked
    any more.
    """

    def __init__(self) -> None:
        parent, prefix = _parent(), f"hmc-run-{_kernel()}-"
        _remove_left(parent, prefix)
        while True:
            self._folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)
            self.name = self._folder.name
            if lock := _locked(Path(self.name, LOCK), "x"):
                self._lock = lock
                return
            self._folder.cleanup()  # another process took it for one that was left

    def close(self) -> None:
        """Removes the folder."""
        self._folder.cleanup()
        self._lock.close()


def _parent() -> str:
    """That of temporary files, or /tmp where its path is too long for a socket."""
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) + NAME_BYTES <= MOST_PATH_BYTES else "/tmp"


def _kernel() -> str:
    """Tells this kernel from others that share a file system with it, where locks may be local."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return f"{os.getpid():08d}"[:8]


def _locked(path: Path, mode: str) -> IO[bytes] | None:
    """The open file with its lock; None where another process has the lock, or has removed the file.

    ``mode`` "x": a new file, which is open without a lock where the file system has none. "r": one that is there.
    """
    try:
        file: IO[bytes] = path.open(f"{mode}b")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        good = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        good = False
    except OSError:
        good = mode == "x"
    if good:
        return file
    file.close()
    return None


def _remove_left(parent: str, prefix: str) -> None:
    """Removes folders of processes that were killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if not entry.name.startswith(prefix):
                continue
            with contextlib.suppress(OSError):  # another process removes it too
                # That of another user may have links in it.
                if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                    continue
                if lock := _locked(Path(entry.path, LOCK), "r"):
                    with lock:
                        shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    os.rmdir(entry.path)  # of a process that ended before it made the file; refused where there is one
