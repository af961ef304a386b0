"""Which workers of a prefill engine have what a worker of a decode engine needs, where tensor and pipeline sizes differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hmc.errors import UnsupportedError
from hmc.integrations.vllm._params import Remote

__all__ = ["Grid", "Source", "heads_of"]

# The layers [first, end) of stage `rank` of `size`.
LayersOf = Callable[[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Source:
    """A prefill worker, and how many workers of this engine read from it. ``read``: False where none does; it is only released."""

    address: str
    readers: int = 1
    read: bool = True


def heads_of(total: int, size: int, rank: int) -> tuple[int, int]:
    """First and count of a worker's KV heads. Where there are more workers than heads, neighbouring workers have copies of one."""
    if size <= total:
        return rank * (total // size), total // size
    return rank * total // size, 1


@dataclass(frozen=True)
class Grid:
    """The place (pp, tp) of a worker among those of its engine. ``heads``: KV heads of the model."""

    heads: int
    tp_size: int
    pp_size: int
    pp: int
    tp: int

    def sources(self, remote: Remote, layers_of: LayersOf) -> list[Source]:
        """The workers of ``remote`` that this worker reads, and the workers that it only tells to free the blocks.

        Raises UnsupportedError for sizes that no engine of this model has: clients name them.
        """
        layers = layers_of(self.pp_size - 1, self.pp_size)[1]
        if remote.pp_size > layers or (self.heads % remote.tp_size and remote.tp_size % self.heads):
            raise UnsupportedError(
                f"tp_size {remote.tp_size} and pp_size {remote.pp_size} of the prefill engine do not fit a model of {self.heads} "
                f"KV heads and {layers} layers"
            )
        readers: Counter[tuple[int, int]] = Counter()
        for pp in range(self.pp_size):
            for tp in range(self.tp_size):
                readers.update(self._read_by(pp, tp, remote, layers_of))
        found = [Source(remote.address(*one), readers[one]) for one in self._read_by(self.pp, self.tp, remote, layers_of)]
        if (self.pp, self.tp) == (0, 0):
            every = ((pp, tp) for pp in range(remote.pp_size) for tp in range(remote.tp_size))
            found += [Source(remote.address(*one), read=False) for one in every if not readers[one]]
        return found

    def _read_by(self, pp: int, tp: int, remote: Remote, layers_of: LayersOf) -> Iterator[tuple[int, int]]:
        """The remote workers that a worker of this engine reads: all that have its layers; one for each of its heads."""
        first, count = heads_of(self.heads, self.tp_size, tp)
        mine = range(first, first + count)
        if remote.tp_size <= self.heads:
            per = self.heads // remote.tp_size
            ranks = sorted({head // per for head in mine})
        else:
            copies = remote.tp_size // self.heads
            ranks = [head * copies + tp % copies for head in mine]
        begin, end = layers_of(pp, self.pp_size)
        for stage in range(remote.pp_size):
            other_begin, other_end = layers_of(stage, remote.pp_size)
            if max(begin, other_begin) < min(end, other_end):
                for rank in ranks:
                    yield stage, rank
