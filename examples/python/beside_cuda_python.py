"""Beside cuda-python (pip install '.[cuda]'). Run: python examples/python/beside_cuda_python.py (one process, one device)"""

import numpy as np
from cuda.core import Device

import hmc

device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = device.allocate(1 << 16, stream=stream)

with hmc.init(rank=0, size=1) as comm:
    local = comm.register(buffer)  # in place, by DLPack
    target = comm.buffer(1 << 16, device="cuda:0")
    remote = comm.exchange(target)[0]

    buffer.fill(7, stream=stream)
    work = comm.put(local, remote, stream=stream)  # after what is queued on the stream; nobody waits here
    work.join(stream, "cuda:0")  # what comes next on the stream comes after the transfer
    buffer.fill(8, stream=stream)
    work.wait(timeout=10)

    result = np.empty(1 << 16, np.uint8)
    target.memory.copy_to(result)
    assert (result == 7).all()
stream.sync()
print("done")
