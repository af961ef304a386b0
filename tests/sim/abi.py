"""What the ABIs of the vendors have in common, as a client sees it by ctypes alone: nothing here comes from HMC."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_byte, c_char_p, create_string_buffer
from pathlib import Path
from typing import Any, ClassVar

INVALID, NO_MEMORY, ILLEGAL = "invalid", "no memory", "illegal address"
CUDA_CODES = {INVALID: 1, NO_MEMORY: 2, ILLEGAL: 700}


class Failure(Exception):
    """A call returned something else than success."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}")
        self.code = code


class Handle64(ctypes.Structure):
    _fields_: ClassVar[Any] = [("data", c_byte * 64)]


class Vendor:
    """What every ABI can do. A device pointer is an int here, a host pointer too."""

    codes = CUDA_CODES
    not_ready = 600
    copy_call: str  # the entry point of copy()
    alloc_call: str
    has_pin = True

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.lib = ctypes.CDLL(str(path))
        self.lib.hmcsim_description.restype = c_char_p

    def __call__(self, call: str, *arguments: Any) -> None:
        code = getattr(self.lib, call)(*arguments)
        if code != 0:
            raise Failure(call, code)

    def out(self, kind: Any, call: str, *arguments: Any) -> Any:
        """Calls with a place for a result in front."""
        value = kind()
        self(call, byref(value), *arguments)
        return value.value

    def text(self, call: str, *arguments: Any) -> str:
        buffer = create_string_buffer(64)
        self(call, buffer, 64, *arguments)
        return buffer.value.decode()

    def fail(self, call: str, nth: int, code: int) -> None:
        assert self.lib.hmcsim_fail(call.encode(), nth, code) == 0

    def ready(self, call: str, handle: Any) -> bool:
        try:
            self(call, handle)
        except Failure as failure:
            if failure.code == self.not_ready:
                return False
            raise
        return True


def address(buffer: Any, offset: int = 0) -> int:
    return ctypes.addressof(buffer) + offset
