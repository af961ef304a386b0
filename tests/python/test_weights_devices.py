"""hmc.weights from and into device memory, on simulated devices of every vendor, every byte compared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from test_devices import SIMULATED
from test_kv_devices import run_python
from test_streams import CALLER

import hmc
import hmc.testing


@pytest.mark.parametrize("number", range(len(SIMULATED)))
def test_pairs_of_simulated_vendors(number: int) -> None:
    here, there = SIMULATED[number], SIMULATED[(number + 1) % len(SIMULATED)]
    out = run_python("weights_on_devices.py", "cpu", here, there, timeout=110, **hmc.testing.environment())
    assert "pairs: 9" in out


@pytest.mark.timeout(300)  # thousands of short operations, each of which may wait for the turn of a device that others use
def test_every_pair_of_real_devices() -> None:
    devices = hmc.devices()
    if devices == ["cpu"]:
        pytest.skip("this machine has no accelerator that HMC can use")
    assert f"pairs: {len(devices) ** 2}" in run_python("weights_on_devices.py", *devices, timeout=280)


STREAMS = """
import contextlib
from hmc import weights
from weights_pair import Pair, random

class Array:
    \"\"\"Device memory that says which stream writes it.\"\"\"
    def __init__(self, host, device):
        self.memory = hmc.Memory(host.nbytes, device)
        self.memory.copy_from(host)
        self.shape, self.dtype = host.shape, host.dtype

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.memory.address, False), "version": 3,
                "stream": caller.stream}

def after(call):
    \"\"\"What a call returns, which ends only after the gate has opened.\"\"\"
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    time.sleep(0.1)
    assert not found
    caller.gate.set()
    thread.join(20)
    return found[0]

def error_of(call):
    try:
        call()
    except hmc.HmcError as error:
        return type(error)

def update(source):
    with source.update(2):
        pass

hmc.devices()  # opens the library
caller = Caller(vendor)
with contextlib.ExitStack() as end:
    pair = Pair(end)
    trained, served = (Array(random((300, 1001), np.uint8, seed), vendor + ":0") for seed in (1, 2))
    caller.hold()
    caller.fill(trained.memory.address, 7, 300_300)
    source = after(lambda: end.enter_context(weights.publish(pair.source_ctx, {"x": trained})))
    found = weights.lookup(pair.ctx, pair.peer, timeout=20)
    plan = pair.plan(found, {"x": served})
    plan.pull(timeout=20).wait()
    caller.gate.clear()
    caller.hold()
    caller.fill(served.memory.address, 9, 300_300)  # still uses the target
    after(plan.commit)
    caller.synchronize()
    found = np.empty(300_300, np.uint8)
    served.memory.copy_to(found)
    assert (found == 7).all()
    # Behind a stream that is stuck, close() ends what waits, and the target stays as it is.
    plan.pull(timeout=20).wait()
    for closing, call in ((plan.close, plan.commit), (source.close, lambda: update(source))):
        caller.gate.clear()
        caller.hold()
        caller.fill(trained.memory.address, 8, 300_300)
        ended = []
        thread = threading.Thread(target=lambda: ended.append(error_of(call)))
        thread.start()
        time.sleep(0.1)
        assert not ended
        closing(20)
        thread.join(20)
        assert ended == [hmc.ClosedError], ended
        caller.gate.set()
        caller.synchronize()
    served.memory.copy_to(found)
    assert (found == 7).all()
print("ordered")
"""


@pytest.mark.parametrize("vendor", ["cuda", "rocm"])
def test_arrays_are_used_behind_their_streams(run_script: Callable[..., str], vendor: str) -> None:
    assert "ordered" in run_script(CALLER + f"vendor = {vendor!r}\n" + STREAMS, dict(hmc.testing.environment()))
