"""Threads that are kept for some seconds after their work: another one's start takes as long as a short transfer."""

from __future__ import annotations

import itertools
import os
import queue
import threading
from collections.abc import Callable

from hmc._process import start_thread

__all__ = ["run_on_thread"]

_KEPT = 5.0  # seconds without work
_MOST_KEPT = 8

_Given = queue.SimpleQueue[tuple[Callable[[], None], str]]


class _Worker:
    """A thread that does one piece of work after another."""

    def __init__(self) -> None:
        self.given: _Given = queue.SimpleQueue()

    def main(self) -> None:
        while (given := self._next()) is not None:
            run, name = given
            threading.current_thread().name = name
            run()
            del given, run  # what they refer to is not kept
            threading.current_thread().name = "hmc idle"
            _idle.append(self.given)
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
            _idle.remove(self.given)
        except ValueError:
            return False
        return True


# What workers without work wait at. Without a lock, which a signal's handler might find taken: each use is one call of list.
_idle: list[_Given] = []
os.register_at_fork(after_in_child=_idle.clear)


def run_on_thread(run: Callable[[], None], name: str) -> None:
    """Runs it on a daemon thread of that name. Raises OutOfMemoryError where the system refuses another one. Any thread."""
    try:
        # Takes a worker and gives it the work in one call, which no Python code is part of: an exception that a signal's handler
        # raises in between would leave a worker that nobody gives work any more, and that waits for it for ever.
        next(map(queue.SimpleQueue.put, iter(_idle.pop, None), itertools.repeat((run, name))))
    except IndexError:
        worker = _Worker()
        worker.given.put((run, name))
        start_thread(worker.main, name)
