"""Bytes of a device, for tests that look at arrays as at those of NumPy."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hmc

#: Where the two sides of a test have their arrays: "cuda:0,rocm:1". Without it both have NumPy arrays.
DEVICES = [name for name in os.environ.get("HMC_TEST_DEVICES", "").split(",") if name]


def transports_of(names: str) -> str:
    """The transports, and where there are devices those that move their memory. A side on the CPU requires them too."""
    return names + ",ipc,staging" if DEVICES else names


class DeviceArray:
    """uint8 in device memory. Each look is at a copy, and each assignment writes through."""

    def __init__(self, host: NDArray[Any], device: str) -> None:
        self.memory = hmc.Memory(host.nbytes, device)
        if host.nbytes:
            self.memory.copy_from(np.ascontiguousarray(host))
        self.size = self.nbytes = host.nbytes

    def copy(self) -> NDArray[np.uint8]:
        found = np.empty(self.nbytes, np.uint8)
        if self.nbytes:
            self.memory.copy_to(found)
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.copy().astype(dtype or np.uint8, copy=False)

    def __getitem__(self, index: Any) -> Any:
        return self.copy()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        changed = self.copy()
        changed[index] = value
        self.memory.copy_from(changed)


def array_on(host: NDArray[np.uint8], device: str) -> Any:
    """The array itself on the CPU, else a DeviceArray."""
    return host if device == "cpu" else DeviceArray(host, device)


def registrable(arrays: list[Any]) -> list[Any]:
    """What a pool takes for such arrays."""
    return [array.memory if isinstance(array, DeviceArray) else array for array in arrays]


def here(arrays: list[Any]) -> list[NDArray[Any]]:
    """The arrays in CPU memory: copies of those of devices."""
    return [np.asarray(array) for array in arrays]
