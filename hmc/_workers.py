"""Threads that are kept for some seconds after their work: another one's start takes as long as a short transfer."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

from hmc._process import start_thread

__all__ = ["run_on_thread"]

_KEPT = 5.0  # seconds without work
_MOST_KEPT = 8


class _Worker:
    """A thread that does one piece of work after another."""

    def __init__(self) -> None:
        self.given: queue.SimpleQueue[tuple[Callable[[], None], str]] = queue.SimpleQueue()

    def main(self) -> None:
        while (given := self._next()) is not None:
            run, name = given
            threading.current_thread().name = name
            run()
            del given, run  # what they refer to is not kept
            threading.current_thread().name = "hmc idle"
            _idle.append(self)
            if len(_idle) > _MOST_KEPT and self._leaves():
                return

    def _next(self) -> tuple[Callable[[], None], str] | None:
        try:
            return self.given.get(timeout=_KEPT)
        except queue.Empty:
            return None if self._leaves() else self.given.get()

    def _leaves(self) -> bool:
        """False where it is about to be given work."""
        try:
            _idle.remove(self)
        except ValueError:
            return False
        return True


# Without a lock, which a signal's handler might find taken: each use is one call of list.
_idle: list[_Worker] = []
os.register_at_fork(after_in_child=_idle.clear)


def run_on_thread(run: Callable[[], None], name: str) -> None:
    """Runs it on a daemon thread of that name. Raises OutOfMemoryError where the system refuses another one. Any thread."""
    try:
        worker = _idle.pop()
    except IndexError:
        worker = _Worker()
        worker.given.put((run, name))
        start_thread(worker.main, name)
    else:
        worker.given.put((run, name))
