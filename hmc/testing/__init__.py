"""Simulated vendors: libraries that answer as a vendor's runtime does, whose "device memory" faults on any host access.

They let mixed-vendor code run where no accelerator is::

    os.environ.update(hmc.testing.environment("cuda", "rocm"))   # before HMC first looks for devices

Everything that HMC prints about such a device says "simulated".
"""

from __future__ import annotations

from pathlib import Path

from hmc._arguments import flag, text, whole

__all__ = ["LIBRARIES", "VENDORS", "environment", "library"]

#: Vendors that can be simulated, by HMC's names, and the variable that names each one's library.
VENDORS = {
    "cuda": "HMC_CUDA_LIBRARY",
    "rocm": "HMC_ROCM_LIBRARY",
    "hygon": "HMC_HYGON_LIBRARY",
    "mlu": "HMC_MLU_LIBRARY",
    "musa": "HMC_MUSA_LIBRARY",
}

#: Those whose collective library is simulated as well, in the same file, and the variable that names it.
LIBRARIES = {
    "cuda": "HMC_NCCL_LIBRARY",
    "rocm": "HMC_RCCL_LIBRARY",
    "hygon": "HMC_DTK_RCCL_LIBRARY",
    "mlu": "HMC_CNCL_LIBRARY",
    "musa": "HMC_MCCL_LIBRARY",
}


_MOST_DEVICES = 8  # of a vendor


def library(vendor: str) -> str:
    """Path of the library that simulates ``vendor``.

    Raises:
        ValueError: no such vendor.
        TypeError: not a str.
        FileNotFoundError: this installation was built without the simulated vendors.
    """
    if text("vendor", vendor) not in VENDORS:
        raise ValueError(f"{vendor!r} is not a vendor that can be simulated; these are: {', '.join(VENDORS)}")
    path = Path(__file__).parent / f"libhmcsim_{vendor}.so"
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: this installation was built without the simulated vendors")
    return str(path)


def environment(*vendors: str, devices: int = 2, libraries: bool = False) -> dict[str, str]:
    """Environment variables that put simulated devices in place of the real ones of ``vendors`` (default: all).

    ``devices`` is their number per vendor, 0 to 8. With ``libraries`` simulated collective libraries (NCCL, RCCL, MCCL, CNCL) carry
    out the calls that name them, else none does. Set them before the process first asks HMC for a device, best before it starts.

    Raises what :func:`library` raises; InvalidArgumentError for another number of devices.
    """
    devices, libraries = whole("devices", devices, 0, _MOST_DEVICES), flag("libraries", libraries)
    chosen = vendors or tuple(VENDORS)
    paths = {each: library(each) for each in chosen}
    collective = {LIBRARIES[each]: paths[each] if libraries else "off" for each in chosen if each in LIBRARIES}
    return {**{VENDORS[each]: path for each, path in paths.items()}, **collective, "HMC_SIM_DEVICES": str(devices)}
