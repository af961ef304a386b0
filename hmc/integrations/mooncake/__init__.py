"""Mooncake's TransferEngine over HMC: programs written for it run on every vendor.

``python -m hmc.integrations.mooncake PROGRAM ARGUMENTS...`` runs a program whose ``import mooncake.engine`` finds this package.
docs/howto/mooncake.md lists what differs from Mooncake.
"""

from __future__ import annotations

from hmc.integrations.mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

__all__ = ["TransferEngine", "TransferNotify", "TransferOpcode"]
