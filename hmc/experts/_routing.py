"""Which row goes where: pure arithmetic on expert numbers, with NumPy.

A *pair* is a token and one of its experts. Pairs are sent grouped by expert and, within an expert, in the order of tokens. The
receiver has them grouped by expert, then by source rank, then by token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmc.errors import InvalidArgumentError
from hmc.experts._shape import Shape

Ints = NDArray[np.int64]


def check_ids(ids: NDArray[np.integer], shape: Shape) -> Ints:
    """The expert numbers as int64 of shape (tokens, top k). InvalidArgumentError names the first one that is refused."""
    if ids.ndim != 2 or ids.dtype.kind not in "iu":
        raise InvalidArgumentError(f"topk_ids: {ids.dtype} of shape {ids.shape}; pass integers of shape (tokens, top k)")
    if ids.shape[0] > shape.tokens or ids.shape[1] > shape.topk:
        raise InvalidArgumentError(
            f"topk_ids: shape {ids.shape}; this Buffer was made for at most {shape.tokens} tokens and top {shape.topk}"
        )
    found = ids.astype(np.int64, copy=False)
    least = -1 if ids.dtype.kind == "i" else 0  # of uint64, large numbers have become negative
    if found.size and not (found.min() >= least and found.max() < shape.experts):
        token, k = (int(at[0]) for at in np.nonzero((found < least) | (found >= shape.experts)))
        raise InvalidArgumentError(
            f"topk_ids[{token}, {k}] is {ids[token, k]}; experts are 0 to {shape.experts - 1}, and -1 is for none"
        )
    ordered = np.sort(found, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        token, k = (int(at[0]) for at in np.nonzero(twice))
        raise InvalidArgumentError(f"topk_ids[{token}] has expert {ordered[token, k]} twice; a token goes to an expert once")
    return found


def by_rank(owners: Ints, ranks: int, topk: int) -> Ints:
    """The ranks that each token goes to, ascending, -1 for none: (tokens, top k) of the ranks of its experts to (tokens, topk)."""
    goes = np.zeros((len(owners), ranks + 1), bool)
    goes[np.arange(len(owners))[:, None], owners] = True  # -1: the last column
    found = np.full((len(owners), topk), -1, np.int64)
    token, rank = np.nonzero(goes[:, :ranks])
    first = np.searchsorted(token, np.arange(len(owners)))
    found[token, np.arange(len(token)) - first[token]] = rank
    return found


def pack_facts(ids: Ints, weights: NDArray[np.float32], experts: range, width: int) -> Ints:
    """For each token and choice the number of the local expert, -1 for those of other ranks, and its weight, as one word.

    Of shape (tokens, width), with -1 beyond the choices.
    """
    here = (ids >= experts.start) & (ids < experts.stop)
    facts = np.zeros((len(ids), width, 2), np.int32)
    facts[..., 0] = -1
    facts[:, : ids.shape[1], 0] = np.where(here, ids - experts.start, -1)
    facts[:, : ids.shape[1], 1] = np.where(here, weights, np.float32(0)).view(np.int32)
    return facts.view(np.int64)[..., 0]


def unpack_facts(facts: Ints, experts: int) -> tuple[Ints, NDArray[np.float32]]:
    """(local experts, weights). A number that is none of this rank's becomes -1."""
    halves = np.ascontiguousarray(facts).view(np.int32).reshape(*facts.shape, 2)
    ids = halves[..., 0].astype(np.int64)
    ids[(ids < 0) | (ids >= experts)] = -1
    return ids, np.ascontiguousarray(halves[..., 1]).view(np.float32)


class Sent:
    """The pairs of one dispatch at the rank that sends them."""

    def __init__(self, ids: Ints, shape: Shape) -> None:
        self.topk = ids.shape[1]
        flat = ids.reshape(-1)
        # NumPy sorts 16 bits in a tenth of the time.
        order = np.argsort(flat.astype(np.int16) if shape.experts <= 1 << 15 else flat, kind="stable")
        skipped = int(np.searchsorted(flat[order], 0))
        #: By expert: pairs.
        self.counts: Ints = np.bincount(flat[order[skipped:]], minlength=shape.experts)
        #: By pair, in the order of sending: token * top k + number of the choice.
        self.pairs: Ints = order[skipped:]
        self._shape = shape
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.counts)])

    def to(self, rank: int) -> Ints:
        """The pairs that go to a rank."""
        experts = self._shape.experts_of(rank)
        return self.pairs[self._starts[experts.start] : self._starts[experts.stop]]

    def counts_to(self, rank: int) -> Ints:
        """By local expert of the rank."""
        experts = self._shape.experts_of(rank)
        return self.counts[experts.start : experts.stop]

    def tokens_to(self, rank: int) -> Ints:
        """The token of each pair."""
        tokens: Ints = self.to(rank) // self.topk
        return tokens


@dataclass(frozen=True)
class Received:
    """Where the pairs of every source lie among the rows of a rank."""

    counts: Ints  # (sources, local experts)
    starts: Ints  # likewise: row of the first pair

    @staticmethod
    def of(counts: Ints) -> Received:
        """``counts``: pairs by source rank and local expert."""
        # Grouped by expert, then by source.
        by_expert = counts.T.reshape(-1)
        starts = np.cumsum(by_expert) - by_expert
        return Received(counts, np.ascontiguousarray(starts.reshape(counts.shape[1], counts.shape[0]).T))

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def rows_of(self, source: int) -> Ints:
        """The row of each pair of a source, in the order of sending."""
        return rows_of(self.counts[source], self.starts[source])


def rows_of(counts: Ints, starts: Ints) -> Ints:
    """By pair, in the order of sending: the row at the receiver. ``counts``, ``starts``: by local expert."""
    total = int(counts.sum())
    return np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(total, dtype=np.int64)
