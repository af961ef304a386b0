"""Tensors of torch on real devices: every type's bytes, and order behind torch's own streams without saying so."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest


def real_device() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


@pytest.mark.skipif(not real_device(), reason="no torch with a device on this machine")
def test_tensors_go_as_they_are_produced(run_job: Callable[..., str]) -> None:
    run_job(
        """
import torch
with hmc.init() as comm:
    me, peer = comm.rank, 1 - comm.rank
    device = torch.device("cuda", me % torch.cuda.device_count())
    torch.cuda.set_device(device)
    types = [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8]
    for tag, dtype in enumerate(types):
        torch.manual_seed(100 + tag)
        expected = torch.randint(0, 100, (1000, 1003)).to(dtype)
        if me == 0:
            busy = torch.randn(4096, 4096, device=device)
            for _ in range(30):
                busy = busy @ busy * 1e-4  # the stream is busy when the tensor is still to be made
            tensor = torch.zeros((1000, 1003), device=device).to(dtype)
            tensor.copy_(expected.pin_memory(), non_blocking=True)
            comm.send(tensor, peer, tag=tag, timeout=60)
        else:
            tensor = torch.zeros((1000, 1003), device=device).to(dtype)
            work = comm.irecv(tensor, peer, tag=tag)
            work.join(torch.cuda.current_stream())
            got = tensor.cpu()  # queued behind the arrival
            work.wait(60)
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8)), dtype
    # A registered tensor, written by the peer from a stream of its own.
    target = torch.zeros(1 << 20, device=device)
    registered = comm.register(target)
    remote = comm.exchange(registered, timeout=60)[peer]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        source = torch.full((1 << 20,), float(me + 1), device=device)
        local = comm.register(source)
        comm.put(local, remote, notify=1, stream=side).wait(60)
    comm.wait_notify(peer, 1, timeout=60)
    assert bool((target == float(peer + 1)).all())
    view = torch.from_dlpack(comm.buffer(64, device=f"cuda:{device.index}"))
    assert view.device == device and view.dtype == torch.uint8 and view.numel() == 64
    comm.barrier(timeout=60)
""",
        timeout=110,
    )
