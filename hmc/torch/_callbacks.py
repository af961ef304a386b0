"""Threads of the futures: one for deadlines, and those that run what hangs on a future. None before the first future is made."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["deadlines", "run_soon"]

# What hangs on a future may wait for another one, and that for a third. The pool starts a thread only when none is idle, so the
# limit is there for programs that wait without end.
MOST_THREADS = 4096
_pool = ThreadPoolExecutor(MOST_THREADS, "hmc-torch-future")


def run_soon(function: Callable[..., object], *arguments: object) -> None:
    """On a thread that may wait for others of its kind. Not at all once the interpreter ends, when nobody hears of it."""
    with contextlib.suppress(RuntimeError):
        _pool.submit(function, *arguments)


class Deadline:
    """Either its action is run at its time, or it was stopped before."""

    def __init__(self, when: float, action: Callable[[], None]) -> None:
        self.when = when
        self._action: Callable[[], None] | None = action
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        return self._action is not None

    def stop(self) -> bool:
        """False: too late, the action has been taken."""
        return self._take() is not None

    def run(self) -> None:
        action = self._take()
        if action is not None:
            action()

    def _take(self) -> Callable[[], None] | None:
        with self._lock:
            action, self._action = self._action, None
            return action


class Deadlines:
    """Open deadlines, those of each length in the order of their times."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[float, list[Deadline]] = {}
        self._thread: threading.Thread | None = None

    def add(self, seconds: float, action: Callable[[], None]) -> Deadline:
        deadline = Deadline(time.monotonic() + seconds, action)
        with self._changed:
            queue = self._queues.setdefault(seconds, [])
            _drop_closed(queue)
            queue.append(deadline)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="hmc-torch-deadlines", daemon=True)
                self._thread.start()
            if len(queue) == 1:
                self._changed.notify()
        return deadline

    def _watch(self) -> None:
        while True:
            with self._changed:
                for queue in self._queues.values():
                    _drop_closed(queue)
                first = min((queue[0] for queue in self._queues.values() if queue), key=lambda one: one.when, default=None)
                wait = None if first is None else first.when - time.monotonic()
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
            assert first is not None
            first.run()


def _drop_closed(queue: list[Deadline]) -> None:
    closed = 0
    while closed < len(queue) and not queue[closed].open:
        closed += 1
    del queue[:closed]


deadlines = Deadlines()
