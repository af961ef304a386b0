"""Threads of the futures: one for deadlines, and those that run what hangs on a future. None before the first future is made."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

__all__ = ["deadlines", "run_soon"]

# What hangs on a future may wait for another one, and that for a third. A thread is started only when none is idle, so the limit
# is there for programs that wait without end.
MOST_THREADS = 4096
# Seconds that running tasks get when the interpreter exits, as callbacks of HMC do.
LONGEST_EXIT = 5.0
# threading refuses waits longer than threading.TIMEOUT_MAX.
LONGEST_WAIT = 3600.0


class Threads:
    """Threads that run tasks. They are daemons: a task that waits for another process does not keep this one from exiting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: deque[Callable[[], object]] = deque()
        self._started = 0
        self._idle = 0
        self._running = 0  # tasks
        self._ended = False

    def run(self, task: Callable[[], object]) -> None:
        """Run a task, on this thread where the system refuses one. Once end() was called, discard it."""
        with self._changed:
            if self._ended:
                return
            self._tasks.append(task)
            if self._idle >= len(self._tasks) or self._started == MOST_THREADS:
                self._changed.notify()
                return
            try:
                threading.Thread(target=self._work, name=f"hmc-torch-future_{self._started}", daemon=True).start()
            except BaseException as error:
                self._tasks.remove(task)
                if not isinstance(error, RuntimeError):
                    raise
                if "shutdown" in str(error):  # of the interpreter
                    return
                self._running += 1
            else:
                self._started += 1
                return
        self._run(task)

    def end(self, seconds: float) -> None:
        """Discard later tasks and wait for the others, and for what they refer to. For the end of the interpreter."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(
                lambda: not self._tasks and self._running == 0 and self._idle == self._started, max(0.0, seconds)
            )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                if self._ended:
                    self._changed.notify_all()
                self._changed.wait_for(lambda: self._tasks)
                self._idle -= 1
                task = self._tasks.popleft()
                self._running += 1
            with contextlib.suppress(BaseException):
                self._run(task)
            del task  # and what it refers to, before the thread is idle

    def _run(self, task: Callable[[], object]) -> None:
        try:
            with contextlib.suppress(Exception):
                task()
        finally:
            with self._changed:
                self._running -= 1
                if self._ended:
                    self._changed.notify_all()


_threads = Threads()


class Once:
    """An action that is run at most once, or was stopped before. Any thread."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action: Callable[[], object] | None = action
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

    def _take(self) -> Callable[[], object] | None:
        with self._lock:
            action, self._action = self._action, None
            return action


class Deadline(Once):
    """An action with its time on the monotonic clock, in seconds."""

    def __init__(self, when: float, action: Callable[[], object]) -> None:
        super().__init__(action)
        self.when = when


def run_soon(function: Callable[..., object], *arguments: object) -> None:
    """Run a function on a thread that may wait for others of its kind, or on this thread where the system refuses one.

    Exceptions of the function are discarded. Once the interpreter ends, the function is not run.
    """
    _threads.run(partial(function, *arguments))


class Deadlines:
    """Open deadlines, those of each length in the order of their times."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard all deadlines, the thread and the lock. For a forked child."""
        self._changed = threading.Condition()
        self._queues: dict[float, list[Deadline]] = {}
        self._swept: dict[float, int] = {}  # how many were left of each length when closed ones were last looked for
        self._thread: threading.Thread | None = None
        self._ended = False

    def end(self, seconds: float) -> None:
        """Discard all deadlines, and wait for the thread. For the end of the interpreter."""
        with self._changed:
            self._ended = True
            self._queues.clear()
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(max(0.0, seconds))

    def add(self, seconds: float, action: Callable[[], object]) -> Deadline:
        """Run `action` in `seconds` unless it is stopped before, or the interpreter ends. Its exceptions are discarded.

        RuntimeError: the system refuses the first thread.
        """
        deadline = Deadline(time.monotonic() + seconds, action)
        with self._changed:
            if self._ended:
                return deadline
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="hmc-torch-deadlines", daemon=True)
                thread.start()
                self._thread = thread
            queue = self._queues.setdefault(seconds, [])
            _drop_closed(queue)
            if len(queue) > 2 * self._swept.get(seconds, 0) + 64:  # behind one that stays open others close
                queue[:] = [other for other in queue if other.open]
                self._swept[seconds] = len(queue)
            queue.append(deadline)
            if len(queue) == 1:
                self._changed.notify()
        return deadline

    def _watch(self) -> None:
        while True:
            with self._changed:
                if self._ended:
                    return
                for seconds, queue in list(self._queues.items()):
                    _drop_closed(queue)
                    if not queue:
                        del self._queues[seconds]
                        self._swept.pop(seconds, None)
                first = min((queue[0] for queue in self._queues.values()), key=lambda one: one.when, default=None)
                wait = None if first is None else first.when - time.monotonic()
                if wait is None or wait > 0:
                    self._changed.wait(None if wait is None else min(wait, LONGEST_WAIT))
                    continue
            assert first is not None
            with contextlib.suppress(Exception):  # as of a task: the other deadlines need this thread
                first.run()


def _drop_closed(queue: list[Deadline]) -> None:
    closed = 0
    while closed < len(queue) and not queue[closed].open:
        closed += 1
    del queue[:closed]


deadlines = Deadlines()


@atexit.register
def _end() -> None:
    # A thread that frees a tensor takes the interpreter's lock in a destructor of torch, which aborts the process at its end.
    until = time.monotonic() + LONGEST_EXIT
    try:
        _threads.end(LONGEST_EXIT)
    finally:  # also after a Ctrl-C
        deadlines.end(until - time.monotonic())


def _start_anew() -> None:
    """In a forked child: it has none of the parent's threads, and locks may have been held at the fork."""
    global _threads
    _threads = Threads()
    deadlines.reset()


os.register_at_fork(after_in_child=_start_anew)
