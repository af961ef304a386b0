"""First transfer. Run: hmc run -n 2 examples/python/first_transfer.py"""

import numpy as np

import hmc

with hmc.init() as comm:
    # Two-sided: what one sends, the other receives.
    x = np.arange(1 << 20, dtype=np.float32)
    if comm.rank == 0:
        comm.send(x, dst=1)
    else:
        y = np.empty_like(x)
        message = comm.recv(y, src=0, timeout=30)
        assert message.bytes == x.nbytes
        assert np.array_equal(x, y)

    # One-sided: registered buffers, a put into the peer's memory, and a notification that covers it.
    buf = comm.buffer(1 << 20)
    remotes = comm.exchange(buf)  # one RemoteBuffer per rank
    if comm.rank == 0:
        buf.numpy()[:] = 7
        comm.put(buf[:4096], remotes[1][8192:12288], notify=1).wait(timeout=30)
    else:
        comm.wait_notify(0, 1, timeout=30)
        assert (buf.numpy()[8192:12288] == 7).all()
        assert not buf.numpy()[:8192].any()
    if comm.rank == 0:
        print("path to rank 1:", comm.path(1))
    comm.barrier(timeout=30)  # nobody leaves before everybody is done
print("done")
