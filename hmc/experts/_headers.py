"""What ranks tell each other beside the rows: little-endian 64-bit words in registered memory, checked by the reader."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hmc.errors import ProtocolError
from hmc.experts._shape import Shape

Words = NDArray[np.int64]
_DESCRIPTOR = 64  # words that a descriptor may take
_MOST_ROWS = 1 << 40


def dispatch_words(shape: Shape) -> int:
    """Most words of a dispatch header."""
    return 2 + shape.most_local() + shape.most_pairs() * (1 + shape.facts)


def combine_words(shape: Shape) -> int:
    """Most words of a combine header."""
    return 3 + shape.most_local() + _DESCRIPTOR


def write_dispatch(out: Words, number: int, counts: Words, tokens: Words, facts: Words) -> int:
    """Words written: the call's number, pairs, pairs by local expert, the token of each pair, its facts (pairs, facts)."""
    first = 2 + len(counts) + len(tokens)
    out[0], out[1] = number, len(tokens)
    out[2 : 2 + len(counts)] = counts
    out[2 + len(counts) : first] = tokens
    out[first : first + facts.size] = facts.reshape(-1)
    return first + facts.size


def read_dispatch(words: Words, number: int, experts: int, shape: Shape, rank: int) -> tuple[Words, Words, Words]:
    """(pairs by local expert, token of each pair, facts). ProtocolError names the rank whose header is wrong."""
    found, pairs = int(words[0]), int(words[1])
    _check_number(found, number, "dispatch", rank)
    counts = words[2 : 2 + experts].copy()
    most = shape.most_pairs()
    if not 0 <= pairs <= most or counts.min(initial=0) < 0 or counts.max(initial=0) > most or counts.sum() != pairs:
        raise ProtocolError(f"dispatch: the header of rank {rank} has {pairs} pairs, which its counts contradict")
    tokens = words[2 + experts : 2 + experts + pairs].copy()
    if pairs and not (tokens.min() >= 0 and tokens.max() < shape.tokens):
        raise ProtocolError(f"dispatch: the header of rank {rank} names a token beyond its {shape.tokens}")
    facts = words[2 + experts + pairs :][: pairs * shape.facts].copy()
    return counts, tokens, facts.reshape(pairs, shape.facts)


@dataclass(frozen=True)
class Results:
    """Where a rank's results lie. ``descriptor`` names the buffer, of which there may be several in turn; empty: no results."""

    descriptor: bytes
    starts: Words


def write_combine(out: Words, number: int, results: Results) -> int:
    """Words written: the call's number, bytes of the descriptor, first row by local expert, the descriptor."""
    experts, length = len(results.starts), len(results.descriptor)
    size = 2 + experts + -(-length // 8)
    out[0], out[1] = number, length
    out[2 : 2 + experts] = results.starts
    out[2 + experts : size].view(np.uint8)[:length] = np.frombuffer(results.descriptor, np.uint8)
    return size


def read_combine(words: Words, number: int, experts: int, rank: int) -> Results:
    """ProtocolError names the rank whose header is wrong."""
    found, length = int(words[0]), int(words[1])
    _check_number(found, number, "combine", rank)
    starts = words[2 : 2 + experts].copy()
    if not 0 <= length <= 8 * _DESCRIPTOR or starts.min(initial=0) < 0 or starts.max(initial=0) > _MOST_ROWS:
        raise ProtocolError(f"combine: the header of rank {rank} is malformed")
    return Results(words[2 + experts :].view(np.uint8)[:length].tobytes(), starts)


def _check_number(found: int, number: int, what: str, rank: int) -> None:
    if found != number:
        raise ProtocolError(
            f"{what}: rank {rank} is at call {found}, this rank at call {number}: call both in one order everywhere"
        )
