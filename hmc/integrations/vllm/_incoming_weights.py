"""Published weights as a worker of an engine reads them: whole tensors, checked, in host memory. No vLLM."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

import hmc
from hmc import weights
from hmc._deadline import Deadline
from hmc.errors import HmcError, OutOfMemoryError
from hmc.integrations.vllm._log import logger
from hmc.weights._parts import WORDS

__all__ = ["Incoming", "Read"]


class Read(NamedTuple):
    """What was read: its epoch, bytes, and the seconds that it took."""

    epoch: int
    nbytes: int
    seconds: float


def _target(sources: Sequence[weights.Source]) -> dict[str, weights.Part]:
    """Every tensor of the sources, whole. The arrays are never written, so that the system gives them no memory."""
    found: dict[str, weights.Part] = {}
    for source in sources:
        for shard in source.shards:
            if shard.name not in found:
                try:
                    array = np.empty(shard.shape, WORDS[shard.grid.itemsize])
                except MemoryError as error:
                    raise OutOfMemoryError(f"tensor {shard.name} of shape {shard.shape}: {error}") from None
                found[shard.name] = weights.part(array, dtype=shard.dtype)
    return found


class Incoming:
    """Weights of one or more sources. One thread.

    ``addresses``: where the Contexts of the sources listen. Together they have every region of every tensor; where several have
    the same one, they share the work, and replace each other. ``name``: of the publications. ``timeout``: seconds, for all of it.

    Raises what connect(), lookup() and plan() raise.
    """

    def __init__(self, addresses: Sequence[str], name: str, timeout: float) -> None:
        left = Deadline(timeout).left
        self.accepted = False  # vLLM has loaded these tensors before
        self._plan: weights.Plan | None = None
        self._ctx = hmc.Context()
        try:
            peers = [self._ctx.connect(address, timeout=left()) for address in addresses]
            self.sources = [weights.lookup(self._ctx, peer, name, timeout=left()) for peer in peers]
            self._plan = weights.plan(self.sources, _target(self.sources))
        except BaseException:
            self.close()
            raise

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors; as much host memory is taken."""
        return 0 if self._plan is None else self._plan.nbytes

    def read(self, epoch: int | None, timeout: float) -> Read:
        """Reads an epoch, by default the newest, and checks its digests. Raises what Plan.pull() raises."""
        assert self._plan is not None
        begun = time.monotonic()
        self._plan.pull(epoch=epoch, timeout=timeout).wait()
        found, _ = self._plan.pulled()
        return Read(found, self.nbytes, time.monotonic() - begun)

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """What read() has read: names and torch tensors, which the next read() overwrites."""
        assert self._plan is not None
        _, found = self._plan.pulled()
        for name, tensor in found:
            yield name, tensor.torch()

    def close(self) -> None:
        """Ends the connections and frees the memory. Idempotent."""
        for one in (self._plan, self._ctx):
            try:
                if one is not None:
                    one.close()
            except HmcError as error:  # the memory stays until the peer has acknowledged
                logger.warning("HMC: %s", error)
