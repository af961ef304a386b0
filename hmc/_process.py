"""What belongs to the process that made it: after fork() the child has neither its threads nor its memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from hmc.errors import ClosedError, OutOfMemoryError

__all__ = ["Owned", "start_thread"]


class Owned:
    """Base of the objects whose calls raise ClosedError in a child of fork()."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def _check_process(self) -> None:
        """Raises ClosedError in a child of fork(). Called before any lock is taken, which the parent may have held."""
        if os.getpid() != self._process:
            raise ClosedError("this object was made before fork(); HMC does not survive a fork: make another one in the child")


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread. Raises OutOfMemoryError where the system refuses another one."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OutOfMemoryError(
            f"thread {name!r} was refused ({error}): raise the limit of threads, or use fewer transfers"
        ) from error
    return thread
