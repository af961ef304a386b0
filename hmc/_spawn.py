"""``hmc.spawn``: runs a function as a job of several processes of this host."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType
from typing import IO, Any, TypeVar

from hmc._arguments import whole
from hmc._by_value import dumps, named_globals
from hmc._deadline import Deadline
from hmc._job import Job, describe_exit, with_rank
from hmc.errors import ClosedError, HmcCancelledError, HmcTimeoutError, InvalidArgumentError, PeerLostError, RankFailedError

__all__ = ["Failure", "Success", "spawn"]

T = TypeVar("T")

#: Seconds from the first failure to the end of the ranks that still run: those that failed at the same time end by themselves,
#: the others are terminated, then killed.
COLLECT = 0.2
PATIENCE = 0.4
#: Seconds that the rank which failed first has to report, where the others' failures follow from it. The deadline ends them.
CAUSE = 5.0
FOLLOWS = (PeerLostError, ClosedError, HmcCancelledError)  # of ranks that another one has left, closed or aborted

# The paths come first: what is imported there is what is imported here. No name stays in __main__, where those of the caller go.
BOOT = (
    "__import__('sys').path[:] = __import__('sys').argv[4:]; "
    "__import__('hmc._spawned', fromlist=['main']).main(*__import__('sys').argv[1:4])"
)


@dataclass
class Success:
    """The function has returned in one rank. Its pickled result comes next."""


@dataclass
class Failure:
    """Why there is no result. ``when`` is the monotonic time in seconds, which all processes of a host share."""

    text: str  # a traceback
    when: float
    cause: bytes | None  # the pickled exception


def spawn(
    fn: Callable[..., T],
    n: int,
    *args: Any,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[T]:
    """As :func:`hmc.spawn`."""
    if not callable(fn):
        raise TypeError(f"spawn: fn must be callable, not {type(fn).__name__}")
    n, deadline = whole("n", n, 1, 1 << 20), Deadline(timeout)
    variables = _variables(environment)
    task = _pickled(fn, args)
    with ExitStack() as stack:
        # Without a name: nothing is left behind, however this process ends.
        task_file = stack.enter_context(tempfile.TemporaryFile())
        task_file.write(task)
        task_file.flush()
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(n)]
        numbers = ",".join(str(file.fileno()) for file in files)
        paths = [path for path in sys.path if isinstance(path, str)]
        job = Job(
            [sys.executable, "-c", BOOT, str(os.getpid()), str(task_file.fileno()), numbers, *paths],
            n,
            environment=variables,
            output=_Output(),
            descriptors=[(task_file.fileno(), file.fileno()) for file in files],
            ties_itself=True,
        )
        try:
            job.start()
            while (codes := _poll(job, files, deadline)) is None:
                if job.output_error is not None:
                    break
                time.sleep(0.005)
        finally:
            try:
                job.stop(PATIENCE)
            finally:
                left = deadline.left()
                job.close(None if left is None else time.monotonic() + max(left, PATIENCE))
        values = [] if codes is None else _results(files, codes)  # raises where a rank has failed
        if job.output_error is not None:
            raise job.output_error
        return values


def _variables(environment: Mapping[str, str] | None) -> dict[str, str]:
    if environment is not None and not isinstance(environment, Mapping):
        raise TypeError(f"spawn: environment must be a mapping or None, not {type(environment).__name__}")
    variables = dict(environment or {})
    for name, value in variables.items():
        for text in (name, value):
            if not isinstance(text, str):
                raise TypeError(f"spawn: names and values of environment must be str, not {type(text).__name__}: {name!r}")
            try:
                os.fsencode(text)
            except UnicodeEncodeError:
                raise InvalidArgumentError(f"spawn: environment: {name!r} has a surrogate that no byte stands for") from None
        if not name or "=" in name or "\0" in name + value:
            raise InvalidArgumentError(f"spawn: environment: {name!r} is empty, or it has '=' in its name or a zero character")
    return variables


class _Output:
    """Prints a line of a rank."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, rank: int, line: str) -> None:
        text = with_rank(rank, line)
        with self._lock:
            if sys.stdout is None:  # of a program without one; print() does nothing then
                return
            try:
                sys.stdout.write(text)
            except UnicodeEncodeError as error:
                sys.stdout.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
            sys.stdout.flush()


def _poll(job: Job, files: Sequence[IO[bytes]], deadline: Deadline) -> dict[int, int] | None:
    """Exit statuses of the ranks that have ended by themselves, once all have or one has failed."""
    codes = job.ended()
    if any(codes.values()):
        left = deadline.left()
        patience = CAUSE if left is None else min(CAUSE, left)
        until = time.monotonic() + patience
        time.sleep(min(COLLECT, patience))
        while len(codes := job.ended()) < len(files) and time.monotonic() < until:
            if not all(_follows(files[rank]) for rank, code in codes.items() if code):
                break
            time.sleep(0.01)
        return codes
    if len(codes) == len(files):
        return codes
    if deadline.left() == 0:
        running = [str(rank) for rank in range(len(files)) if rank not in codes]
        ranks = f"rank {running[0]} was" if len(running) == 1 else f"ranks {', '.join(running)} were"
        raise HmcTimeoutError(f"spawn: {ranks} still running at the deadline; the job was killed")
    return None


def _follows(file: IO[bytes]) -> bool:
    """Whether the failure of a rank follows from that of another one."""
    outcome = _load(file)
    return isinstance(outcome, Failure) and isinstance(_exception(outcome.cause), FOLLOWS)


def _results(files: Sequence[IO[bytes]], codes: dict[int, int]) -> list[Any]:
    values: dict[int, Any] = {}
    failures: list[tuple[bool, float, int, str, BaseException | None]] = []
    for rank, code in codes.items():
        outcome = _load(files[rank])
        if isinstance(outcome, Failure):
            cause = _exception(outcome.cause)
            failures.append((isinstance(cause, FOLLOWS), outcome.when, rank, f"failed:\n{outcome.text}", cause))
        elif code != 0 or outcome is None:
            how = describe_exit(code) + ("" if code else " without a result")
            failures.append((False, time.monotonic(), rank, how, None))
        else:
            try:
                values[rank] = pickle.load(files[rank])
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # its class may raise anything, SystemExit too
                failures.append((False, time.monotonic(), rank, f"returned what cannot be loaded here: {error!r}", error))
    if failures:
        _, _, rank, how, cause = min(failures, key=lambda failure: failure[:3])
        raise RankFailedError(f"spawn: rank {rank} {how}", rank=rank, exit_code=codes[rank]) from cause
    return [values[rank] for rank in range(len(files))]


def _load(file: IO[bytes]) -> Success | Failure | None:
    """What a rank has written; None if it wrote nothing, or not all of it."""
    file.seek(0)
    try:
        outcome = pickle.load(file)
    except (EOFError, pickle.UnpicklingError):
        return None
    assert isinstance(outcome, Success | Failure)
    return outcome


def _exception(pickled: bytes | None) -> BaseException | None:
    try:
        found = pickle.loads(pickled) if pickled else None
    except KeyboardInterrupt:
        raise
    except BaseException:  # it is of a class that does not take its own arguments, or raises anything else
        return None
    return found if isinstance(found, BaseException) else None


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    task = {"fn": fn, "args": args, "argv": sys.argv}
    try:
        return dumps(task)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # code of the caller's classes runs here
        parts = [(f"argument {i} of fn", arg) for i, arg in enumerate(args)]
        if isinstance(fn, FunctionType):
            parts += [(f"the global {name!r} that fn uses", value) for name, value in named_globals(fn).items()]
        for what, value in parts:
            try:
                dumps(value)
            except KeyboardInterrupt:
                raise
            except BaseException as reason:
                raise InvalidArgumentError(f"spawn: {what} ({type(value).__name__}) cannot be sent: {_words(reason)}") from error
        raise InvalidArgumentError(f"spawn: fn cannot be sent to another process: {_words(error)}") from error


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, Exception) else repr(error)
