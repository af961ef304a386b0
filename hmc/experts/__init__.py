"""Experts on several ranks: dispatch sends tokens to the ranks of their experts, combine brings the results back and sums them.

    ep = hmc.experts.Buffer(comm, experts=64, hidden=4096, tokens=512)
    x2, handle = ep.dispatch(x, topk_ids, topk_weights, timeout=1)
    y = ep.combine(expert(x2), handle, timeout=1)

A rank that dies is masked: its experts contribute nothing, and the other ranks go on.
"""

from __future__ import annotations

from hmc.experts._buffer import Buffer
from hmc.experts._handle import Handle

__all__ = ["Buffer", "Handle"]
