"""Weights between any two shardings: published in place, planned once, pulled from several sources, committed all or nothing.

A source: ``publish(ctx, tensors, epoch=step)``. A receiver: ``plan(lookup(ctx, peer), target)``, then ``pull()`` and ``commit()``.
Tensors are named, and both sides say which part of each they hold. docs/howto/weights.md shows it.
"""

from __future__ import annotations

from hmc.weights._adapters import from_module, from_safetensors, from_state
from hmc.weights._parts import Part, fused, part, shard
from hmc.weights._plan import Plan, plan
from hmc.weights._publish import Publication, publish
from hmc.weights._remote import Source, lookup, lookup_async
from hmc.weights._sinks import Quantised, quantised
from hmc.weights._transfer import Pull

__all__ = [
    "Part",
    "Plan",
    "Publication",
    "Pull",
    "Quantised",
    "Source",
    "from_module",
    "from_safetensors",
    "from_state",
    "fused",
    "lookup",
    "lookup_async",
    "part",
    "plan",
    "publish",
    "quantised",
    "shard",
]
