"""Registered memory that grows with what is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc import _core
from hmc._deadline import Deadline

_PAGE = 4096


class Growing:
    """A ConnBuffer of CPU memory, replaced by a larger one on demand. Old ones stay registered until close().

    One thread at a time.
    """

    def __init__(self, comm: _core.Communicator, nbytes: int = 0) -> None:
        self._comm = comm
        self._old: list[_core.ConnBuffer] = []
        self.buffer = comm.buffer(max(_PAGE, nbytes))
        self._bytes: NDArray[np.uint8] = self.buffer.numpy()

    def ensure(self, nbytes: int) -> _core.ConnBuffer:
        """The buffer, with at least so many bytes. OutOfMemoryError."""
        if self.buffer.nbytes < nbytes:
            self._replace(max(nbytes, 2 * self.buffer.nbytes))
        return self.buffer

    def rows(self, count: int, row_bytes: int) -> NDArray[np.uint8]:
        """The first rows, as bytes of shape (count, row_bytes), without a copy."""
        self.ensure(count * row_bytes)
        return self._bytes[: count * row_bytes].reshape(count, row_bytes)

    def retire(self) -> None:
        """Takes other memory from now on: a transfer that cannot be stopped may still write into this."""
        self._replace(self.buffer.nbytes)

    def _replace(self, nbytes: int) -> None:
        self._old.append(self.buffer)
        self.buffer = self._comm.buffer(-(-nbytes // _PAGE) * _PAGE)
        self._bytes = self.buffer.numpy()

    def close(self, deadline: Deadline) -> None:
        """HmcTimeoutError where a peer may still read or write; HMC keeps the pages until then."""
        for buffer in [*self._old, self.buffer]:
            buffer.close(deadline.left())


def offsets(indices: NDArray[np.int64], row_bytes: int, base: int = 0) -> Any:
    """Bytes of rows."""
    return indices * row_bytes + base
