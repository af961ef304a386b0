"""What a Context keeps of peers that have left."""

from __future__ import annotations

import gc
import time

from patterns import pattern

import hmc


def test_departed_peers_leave_a_bounded_amount() -> None:
    with hmc.Context() as server:
        peers = []
        for _ in range(30):
            with hmc.Context() as client:
                to = client.connect(server.addresses[0], timeout=20)
                peers.append(server.accept(timeout=20))
                for i in range(900):
                    to.notify(pattern(1000, i).tobytes(), timeout=20)
                to.notify(1, timeout=20)
                peers[-1].wait_notify(1, timeout=20)
        end = time.monotonic() + 20
        while any(one.alive for one in peers) and time.monotonic() < end:
            time.sleep(0.01)
        while (counters := server.counters())["notifications.discarded"] < 900 and time.monotonic() < end:
            time.sleep(0.01)
        assert 8 << 20 < counters["notifications.departed_bytes"] <= 16 << 20, counters
        assert counters["notifications.discarded"] >= 900, counters
        newest = [payload for _, payload in peers[-1].notifications()]
        assert newest == [pattern(1000, i).tobytes() for i in range(900)]
        peers.clear()
        gc.collect()
        end = time.monotonic() + 20
        while server.counters()["notifications.departed_bytes"] and time.monotonic() < end:
            time.sleep(0.01)
        assert server.counters()["notifications.departed_bytes"] == 0
