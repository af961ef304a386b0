"""All-to-all, even and uneven. Run: hmc run -n 4 examples/python/all_to_all.py"""

import numpy as np

import hmc

with hmc.init() as comm:
    # Even: row r of `inp` goes to rank r; row r of `out` came from rank r.
    inp = np.array([[100 * comm.rank + dst] * 1000 for dst in range(comm.size)], dtype=np.int64)
    out = np.empty_like(inp)
    comm.all_to_all(out, inp, timeout=30)
    for src in range(comm.size):
        assert (out[src] == 100 * src + comm.rank).all()

    # Uneven: rank s sends s + d elements to rank d. Counts are in elements of the arrays.
    send_counts = [comm.rank + dst for dst in range(comm.size)]
    recv_counts = [src + comm.rank for src in range(comm.size)]
    tokens = np.repeat(np.arange(comm.size, dtype=np.float32) + 10 * comm.rank, send_counts)
    routed = np.empty(sum(recv_counts), dtype=np.float32)
    comm.all_to_all_v(routed, recv_counts, tokens, send_counts, timeout=30)
    assert np.array_equal(routed, np.repeat(10 * np.arange(comm.size, dtype=np.float32) + comm.rank, recv_counts))
print("done")
