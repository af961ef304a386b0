"""Constants and values of ``mooncake.engine``, by its names, and the codes that its calls return."""

from __future__ import annotations

import enum
import functools
import logging
from collections.abc import Callable
from typing import ParamSpec

from hmc.errors import HmcError

__all__ = [
    "ADDRESS_NOT_REGISTERED",
    "ADDRESS_OVERLAPPED",
    "INVALID_ARGUMENT",
    "UNREACHABLE",
    "Refused",
    "Space",
    "TransferNotify",
    "TransferOpcode",
    "failing_with",
    "logger",
]

logger = logging.getLogger("mooncake.engine")
_P = ParamSpec("_P")

# Codes of Mooncake's core.
INVALID_ARGUMENT, ADDRESS_NOT_REGISTERED, ADDRESS_OVERLAPPED, UNREACHABLE = -1, -3, -7, -102


class TransferOpcode(enum.IntEnum):
    """Directions of a transfer, as its initiator sees it."""

    Read = 0
    Write = 1


class TransferNotify:
    """A name and a message, both texts, that the target of a transfer finds with get_notifies()."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        if not isinstance(name, str) or not isinstance(msg, str):
            raise TypeError(f"a TransferNotify has a name and a message that are str, not {name!r} and {msg!r}")
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


class Space(enum.IntEnum):
    """The one kind of memory here: addresses of a process, of the CPU and of devices, are all different."""

    memory = 0


class Refused(Exception):
    """What a call cannot do, and the code that it returns."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def failing_with(result: int | None = None) -> Callable[[Callable[_P, int]], Callable[_P, int]]:
    """Makes a method log its failures and return ``result``, or without one the code of the failure, as Mooncake does."""

    def decorate(method: Callable[_P, int]) -> Callable[_P, int]:
        @functools.wraps(method)
        def call(*arguments: _P.args, **named: _P.kwargs) -> int:
            try:
                return method(*arguments, **named)
            except Refused as error:
                code, reason = error.code, str(error)
            except HmcError as error:
                code, reason = INVALID_ARGUMENT, str(error)
            logger.error("%s: %s", method.__name__.lstrip("_"), reason)
            return code if result is None else result

        return call

    return decorate
