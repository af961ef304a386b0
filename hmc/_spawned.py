"""A process that ``hmc.spawn`` has started: runs the function and hands its outcome to the process that waits for it."""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback

from hmc._job import end_with_parent
from hmc._spawn import Failure, Success
from hmc.errors import InvalidArgumentError

__all__ = ["main"]


def main(parent: str, task: str, results: str) -> None:
    """``parent`` is a process id; ``task`` and ``results``, one per rank, are descriptors of files."""
    end_with_parent(int(parent))
    rank = int(os.environ["HMC_RANK"])
    result = int(results.split(",")[rank])
    for descriptor in (int(task), result):
        os.set_inheritable(descriptor, False)
    outcome, value = _outcome_of(_read(int(task)))
    with open(result, "wb") as file:
        file.write(pickle.dumps(outcome))
        file.write(value)
    sys.exit(1 if isinstance(outcome, Failure) else 0)


def _outcome_of(task: bytes) -> tuple[Success | Failure, bytes]:
    """Runs the function. With the pickled result, if there is one."""
    try:
        work = pickle.loads(task)
        sys.argv[:] = work["argv"]
        value = work["fn"](*work["args"])
    except BaseException as error:
        return _failure(error), b""
    try:
        return Success(), pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except BaseException as error:  # its class may raise anything, SystemExit too
        words = str(error) if isinstance(error, Exception) else repr(error)
        reason = InvalidArgumentError(f"the result of fn ({type(value).__name__}) cannot be sent: {words}")
        return _failure(reason), b""


def _failure(error: BaseException) -> Failure:
    when = time.monotonic()
    # Without the frame of this file.
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next))
    try:
        cause = pickle.dumps(error)
    except BaseException:  # the traceback says what it was
        cause = None
    return Failure(text, when, cause)


def _read(descriptor: int) -> bytes:
    """All of a file whose position the processes share."""
    size = os.fstat(descriptor).st_size
    chunks = []
    done = 0
    while done < size:
        chunks.append(os.pread(descriptor, min(size - done, 1 << 30), done))
        done += len(chunks[-1])
    os.close(descriptor)
    return b"".join(chunks)
