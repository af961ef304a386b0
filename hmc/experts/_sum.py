"""The weighted sum of every token's results, in f32 and in the order of the token's choices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_BLOCK = 8  # tokens that are rounded at once
# Multiplications of one call of BLAS: from about 9000 on it starts threads, which costs more than the sum.
_PRODUCTS = 8192
_HIGH, _HALF, _NAN = np.uint32(0xFFFF0000), np.uint32(0x7FFF), np.uint32(0x7FC00000)
_SHIFT, _ONE = np.uint32(16), np.uint32(1)


def weighted_sum(rows: Bytes, weights: Floats, dtype: str, out: Bytes) -> None:
    """``out[t]`` becomes the sum over k of ``weights[t, k] * rows[t, k]``, rounded to nearest even.

    ``rows``: bytes of shape (tokens, top k, row bytes); ``out``: bytes of shape (tokens, row bytes). The same arguments give the same
    bytes: nothing depends on how many ranks there are or which of them was first.
    """
    if weights.size == 0:
        out[:] = 0
    elif dtype == "bfloat16" and rows.shape[2] % 4 == 0:
        _sum_bf16(rows.view(np.uint32), weights, out.view(np.uint32))
    elif dtype == "bfloat16":
        halves = out.view(np.uint16)
        for token, row in enumerate(rows.view(np.uint16)):
            total = _product(weights[token], (row.astype(np.uint32) << _SHIFT).view(np.float32))
            halves[token] = _rounded(total.view(np.uint32)) >> _SHIFT
    else:
        kind = np.dtype(dtype)
        values, sums = rows.view(kind), out.view(kind)
        with np.errstate(over="ignore", invalid="ignore"):
            for token, row in enumerate(values):
                sums[token] = _product(weights[token], row.astype(np.float32, copy=False))


def _product(weights: Floats, rows: Floats, out: Floats | None = None) -> Floats:
    """weights @ rows, in parts for which BLAS starts no threads."""
    total = np.empty(rows.shape[1:], np.float32) if out is None else out
    step = max(1, _PRODUCTS // len(weights))
    for start in range(0, rows.shape[1], step):
        np.matmul(weights, rows[:, start : start + step], out=total[start : start + step])
    return total


def _sum_bf16(words: NDArray[np.uint32], weights: Floats, out: NDArray[np.uint32]) -> None:
    """Two bf16 are a word: the even columns its low halves, the odd ones its high halves. Each is an f32 whose low bits are 0."""
    tokens, topk, half = words.shape
    parts = np.empty((2, topk, half), np.uint32)
    sums = np.empty((min(tokens, _BLOCK), 2, half), np.float32)
    for first in range(0, tokens, _BLOCK):
        block = min(_BLOCK, tokens - first)
        for at in range(block):
            word, factor = words[first + at], weights[first + at]
            np.left_shift(word, _SHIFT, out=parts[0])
            np.bitwise_and(word, _HIGH, out=parts[1])
            for side in (0, 1):
                _product(factor, parts[side].view(np.float32), sums[at, side])
        bits = _rounded(sums[:block].view(np.uint32))
        low, high = bits[:, 0], bits[:, 1]
        np.right_shift(low, _SHIFT, out=low)
        np.bitwise_and(high, _HIGH, out=high)
        np.bitwise_or(low, high, out=out[first : first + block])


def _rounded(bits: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The bits of f32, changed in place so that their high halves are the nearest bf16."""
    nan = np.isnan(bits.view(np.float32))
    odd = (bits >> _SHIFT) & _ONE
    odd += _HALF
    bits += odd
    if nan.any():
        bits[nan] = _NAN
    return bits
