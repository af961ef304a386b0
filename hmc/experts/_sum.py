"""The weighted sum of every token's results, in f32 and in the order of the token's choices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Words = NDArray[np.uint32]
Bytes = NDArray[np.uint8]

_BLOCK = 4  # tokens that are rounded at once
_ROWS = 8  # that are cast at once
_HIGH, _HALF, _NAN = np.uint32(0xFFFF0000), np.uint32(0x7FFF), np.uint32(0x7FC00000)
_SHIFT, _ONE = np.uint32(16), np.uint32(1)


def weighted_sum(rows: Bytes, weights: Floats, dtype: str, out: Bytes) -> None:
    """``out[t]`` becomes the sum over k of ``weights[t, k] * rows[t, k]``, rounded to nearest even.

    ``rows``: bytes of shape (tokens, top k, row bytes); ``out``: bytes of shape (tokens, row bytes). The same arguments give
    the same bytes: nothing depends on how many ranks there are or which of them was first.
    """
    if weights.size == 0:
        out[:] = 0
        return
    with np.errstate(all="ignore"):  # infinities and NaN are results like others
        if dtype != "bfloat16":
            _sum_of_numpy_type(rows.view(dtype), weights, out.view(dtype))
        elif rows.shape[2] % 4 == 0:
            _sum_pairs(rows.view(np.uint32), weights, out.view(np.uint32))
        else:
            _sum_halves(rows.view(np.uint16), weights, out.view(np.uint16))


def _sum_of_numpy_type(rows: NDArray[Any], weights: Floats, out: NDArray[Any]) -> None:
    for token, row in enumerate(rows):
        out[token] = weights[token] @ row.astype(np.float32, copy=False)


def _sum_halves(rows: NDArray[np.uint16], weights: Floats, out: NDArray[np.uint16]) -> None:
    """Of bfloat16 with an odd number of columns."""
    for token, row in enumerate(rows):
        total = weights[token] @ (row.astype(np.uint32) << _SHIFT).view(np.float32)
        out[token] = _rounded(total.view(np.uint32)) >> _SHIFT


def _sum_pairs(words: Words, weights: Floats, out: Words) -> None:
    """Of bfloat16, two to a word: the low halves are the even columns, the high halves the odd ones.

    With zeros for the other half, each is the f32 of the same value. The f32 of a group of tokens fit into a core's cache.
    """
    tokens, topk, half = words.shape
    group = min(_BLOCK, max(1, _ROWS // topk))
    parts = np.empty((2, group, topk, half), np.uint32)
    sums = np.empty((2, _BLOCK, 1, half), np.float32)
    for first in range(0, tokens, _BLOCK):
        block = min(_BLOCK, tokens - first)
        for at in range(0, block, group):
            some = slice(first + at, first + min(at + group, block))
            count = some.stop - some.start
            np.left_shift(words[some], _SHIFT, out=parts[0, :count])
            np.bitwise_and(words[some], _HIGH, out=parts[1, :count])
            np.matmul(weights[some, None], parts[:, :count].view(np.float32), out=sums[:, at : at + count])
        bits = _rounded(sums[:, :block, 0].view(np.uint32))
        low, high = bits
        np.right_shift(low, _SHIFT, out=low)
        np.bitwise_and(high, _HIGH, out=high)
        np.bitwise_or(low, high, out=out[first : first + block])


def _rounded(bits: Words) -> Words:
    """The bits of f32, changed in place so that their high halves are the nearest bfloat16."""
    nan = np.isnan(bits.view(np.float32))
    odd = bits >> _SHIFT
    odd &= _ONE
    odd += _HALF
    bits += odd
    if nan.any():
        bits[nan] = _NAN
    return bits
