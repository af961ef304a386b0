"""Typed, shaped views of Memory, ConnBuffers and RemoteBuffers, and what of them lies where.

``hmc.Context.register`` takes an array's bytes. :func:`register` keeps its element type and shape as well, so that parts are named
by their indices: ``pairs(cache[layer, pages], remote[layer, other_pages])`` is what ``prepare_blocks`` takes. Nothing is copied.
"""

from __future__ import annotations

from hmc.tensors._register import describe, register
from hmc.tensors._tensor import Blocks, Tensor, pairs, view

__all__ = ["Blocks", "Tensor", "describe", "pairs", "register", "view"]
