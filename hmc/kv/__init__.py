"""KV caches between inference engines: pools, leases, pull and layered push, with conversion between layouts.

A :class:`Pool` stands for the cache of one engine. A prefill engine leases the pages of a session and gives the ticket to a decode
engine, which pulls them into pages of its own; or it pushes layer by layer while it computes. Layout, block size, element type, TP
slice and PP stage may differ. What has arrived is checked: by generation (:class:`hmc.LeaseExpiredError`) and by digest
(:class:`hmc.CorruptError`).
"""

from __future__ import annotations

from hmc.kv._leases import Lease
from hmc.kv._pool import Pool
from hmc.kv._push import Push
from hmc.kv._receive import Inbox
from hmc.kv._transfer import Transfer

__all__ = ["Inbox", "Lease", "Pool", "Push", "Transfer"]
