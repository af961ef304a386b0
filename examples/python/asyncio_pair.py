"""A serving pair under asyncio: one process publishes a buffer, the other fills it. Run: python examples/python/asyncio_pair.py"""

import asyncio
import subprocess
import sys

import numpy as np

import hmc


async def decode() -> None:
    """The server: owns the KV cache, waits for it to be filled."""
    with hmc.Context() as ctx:
        cache = ctx.buffer(16 << 20)
        ctx.publish("kv", cache)
        print(ctx.addresses[0], flush=True)
        peer = await ctx.accept_async(timeout=30)
        await peer.wait_notify_async(1, timeout=30)
        assert (cache.numpy(dtype=np.uint32) == np.arange(4 << 20, dtype=np.uint32)).all()
        reply = np.frombuffer(b"thanks", np.uint8)
        await peer.isend(reply)


async def prefill(address: str) -> None:
    """The client: connects, looks the buffer up by name, puts in pieces that are awaited together."""
    with hmc.Context() as ctx:
        peer = await ctx.connect_async(address, timeout=30)
        kv = await peer.lookup_async("kv", timeout=30)
        mine = ctx.register(np.arange(4 << 20, dtype=np.uint32))
        piece = 1 << 20
        await asyncio.gather(*(peer.put(mine[i : i + piece], kv[i : i + piece]) for i in range(0, kv.nbytes, piece)))
        peer.notify(1)
        reply = np.empty(6, np.uint8)
        await peer.irecv(reply)
        assert reply.tobytes() == b"thanks"


def main() -> None:
    """Starts the server as a process of its own, then runs the client."""
    if len(sys.argv) > 1:
        asyncio.run(decode())
        return
    server = subprocess.Popen([sys.executable, __file__, "decode"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    asyncio.run(prefill(server.stdout.readline().strip()))
    assert server.wait(timeout=30) == 0
    print("done")


if __name__ == "__main__":
    main()
