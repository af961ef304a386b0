"""The error that HMC itself has no code for: memory that is known by its address only, and not registered."""

from __future__ import annotations

from hmc.errors import InvalidArgumentError

__all__ = ["NotRegisteredError"]


class NotRegisteredError(InvalidArgumentError):
    """No registration holds the memory."""
