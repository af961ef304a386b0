"""The end of pinned CPU memory: on which device it is unpinned, and what stays mapped where that fails."""

from __future__ import annotations

from collections.abc import Callable

from test_host_copies import prelude

import hmc.testing

UNUSED = """
library = ctypes.CDLL(hmc.testing.library(VENDOR))

def active(device):
    flags, found = ctypes.c_uint(), ctypes.c_int()
    assert library.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(found)) == 0
    return found.value == 1

def mapped(address):
    spans = (line.split()[0].split("-") for line in open("/proc/self/maps"))
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)

host, device = hmc.Memory(SIZE), hmc.Memory(SIZE, "cuda:1")
device.copy_blocks_from(host, [0], [0], SIZE)  # pins it
address = host.numpy().ctypes.data
assert not active(0) and active(1) and mapped(address)
"""


def test_unpinning_uses_no_other_device(run_script: Callable[..., str]) -> None:
    source = (
        UNUSED
        + """
del host
gc.collect()
device.fill(0)
assert not mapped(address), "the memory was given back"
assert not active(0), "a context was made on an unused device"
"""
    )
    run_script(prelude("cuda") + source, hmc.testing.environment())


def test_pages_that_cannot_be_unpinned_stay_mapped(run_script: Callable[..., str]) -> None:
    """A device would read the old pages for what comes to their address later."""
    source = (
        UNUSED
        + """
assert library.hmcsim_fail(b"cuMemHostUnregister", 1, 999) == 0
del host
gc.collect()
device.fill(0)
assert mapped(address)
"""
    )
    run_script(prelude("cuda") + source, hmc.testing.environment())
