"""Arrays and buffers. Run: python examples/python/arrays_and_buffers.py (one process, talking to itself)"""

import numpy as np

import hmc

with hmc.init(rank=0, size=1) as comm:
    # Memory: bytes on a device, as an array of any dtype without a copy.
    memory = hmc.Memory(4096)
    view = memory.numpy(dtype=np.float32, shape=(32, 32))
    view[:] = np.eye(32, dtype=np.float32)
    del memory
    assert view.trace() == 32  # the view keeps the memory alive

    # A ConnBuffer over memory that HMC allocates, and one in place over an array of yours.
    buf = comm.buffer(1 << 16)
    mine = np.arange(1 << 14, dtype=np.int32)
    registered = comm.register(mine)
    remote = comm.exchange(buf)[0]

    comm.put(registered, remote).wait(timeout=10)
    assert np.array_equal(buf.numpy(dtype=np.int32), mine)

    # Many scattered blocks: offsets as arrays, validated once, posted as often as you like.
    page = 1024
    source_pages = np.array([5, 0, 9], dtype=np.int64) * page
    target_pages = np.array([1, 2, 40], dtype=np.int64) * page
    batch = comm.prepare_blocks([(registered, source_pages, remote, target_pages)], block=page)
    comm.put_blocks(batch, notify=3).wait(timeout=10)
    comm.wait_notify(0, 3, timeout=10)
    raw = mine.view(np.uint8)
    for source, target in zip(source_pages, target_pages, strict=True):
        assert np.array_equal(buf.numpy()[target : target + page], raw[source : source + page])

    # DLPack in and out, without a copy.
    assert np.from_dlpack(buf).nbytes == 1 << 16
print("done")
