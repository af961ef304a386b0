"""KV pages, weights and experts of torch tensors between two processes on two devices and the CPU, every byte compared.

Usage: python bench/serving_devices.py [--devices cuda:0 cuda:1] [--tokens 4096] [--repeat 5] [--tensors 32] [--only-pages]
[--json FILE], with Python of an environment that has torch. With ``--devices cpu cpu`` it runs on any machine. Prints JSON: what
was compared, and medians in GB/s (10^9 bytes per second) of

- pull: pages of 64 KiB (32 layers, 8 heads of 128, blocks of 16 tokens, bf16), as they are, permuted into other blocks, and cast;
- digest: what a lease with digests takes at the prefill side;
- weights: pull with digests into the plan's CPU memory, and commit to the device;
- layers: tensors of 256 MiB of bf16, of which the second process takes half of the rows each (TP 1 to 2), with a shadow on its own
  device, where that is one; beside one get of as many bytes.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hmc
from hmc import experts, kv, layout, weights
from hmc.layout import Layout

PAGES = "L=32 B={blocks} (kv H=8 N=16 D=128) bf16"
TURNED = "L=32 B={half} N=32 kv H=8 D=128 f32"
SMALL = [
    ("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=3 B=12 H=4 N=16 (kv D=32) bf16"),
    ("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=3 B=9 kv H=4 D=32 N=32 bf16"),
    ("L=2@1 B=12 N=16 H=2@2 (kv D=33) f16", "L=4 B=7 N=32 H=4 (kv D=33) f32"),
    ("L=3 B=12 H=4 N=16 (kv D=32) bf16", "L=3 B=12 kv N=16 H=4 D=32 f8_e4m3fn scale=0.02,0.03"),
]
TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f8_e4m3fn": torch.float8_e4m3fn}


@functools.lru_cache(maxsize=32)
def cache(described: Layout, seed: int) -> Any:
    """A cache in CPU memory, of normal numbers. Not to be changed."""
    count = described.buffer_bytes // {"bf16": 2, "f16": 2, "f32": 4, "f8_e4m3fn": 1}[described.dtype]
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed))
    return values.to(TORCH[described.dtype])


def placed(tensor: Any, mine: str) -> Any:
    """A copy on a device; "hmc cpu": in CPU memory that HMC allocated, which devices of other processes map."""
    if mine != "hmc cpu":
        return tensor.to(mine, copy=True)
    here = torch.from_numpy(hmc.Memory(tensor.nbytes).numpy()).view(tensor.dtype)
    return here.copy_(tensor)


def same(device_tensor: Any, host: Any) -> bool:
    return torch.equal(device_tensor.cpu().view(torch.uint8), host.view(torch.uint8))


class Rank:
    """One of two processes: rank 0 gives, rank 1 takes."""

    def __init__(self, comm: hmc.Communicator) -> None:
        self.comm = comm
        self.ctx = comm.context
        self.peer = comm.peer(1 - comm.rank)
        self.gives = comm.rank == 0

    def tell(self, data: bytes = b"") -> bytes:
        """What the other rank tells; both call it."""
        return self.comm.exchange_bytes(data, timeout=60)[1 - self.comm.rank]

    def timed(self, call: Callable[[], Any]) -> tuple[float, Any]:
        self.comm.barrier(timeout=60)
        begin = time.perf_counter()
        found = call()
        return time.perf_counter() - begin, found


def pages(rank: Rank, mine: str, prefill: str, decode: str) -> int:
    """One pull and one push, compared with a conversion on the CPU. The push follows a kernel on torch's stream. Bytes compared."""
    source, target = Layout(prefill), Layout(decode)
    tokens, blocks = 59, [11, 6, 5, 2]
    theirs = list(range(-(-(tokens + 3) // target.block)))
    given, taken = cache(source, 1), cache(target, 2)
    here = (given if rank.gives else taken).to(mine, copy=True)
    words = here.view(torch.uint8)  # no interface between libraries has fp8 in every version of torch
    with kv.Pool(rank.ctx, words, source if rank.gives else target) as pool:
        if rank.gives:
            lease = pool.lease("s", blocks, tokens)
            rank.tell(lease.ticket)
            assert lease.wait(60) == "read"
        else:
            pool.pull(rank.peer, rank.tell(), theirs, first=3).wait(60)
        after = taken.clone()
        layout.convert(source, given.view(torch.uint8), blocks, target, after.view(torch.uint8), theirs, tokens, target_first=3)
        assert rank.gives or same(here, after), ("pull", mine, prefill, decode)
        first = source.layers[0]
        if rank.gives:
            with pool.push(rank.peer, rank.tell(), blocks) as push:
                for _ in range(20):
                    here.neg_()  # still queued when ready() is called
                here.neg_()
                given = -given
                for layer in range(first, first + source.layers[1]):
                    push.ready(layer, timeout=60)
        else:
            inbox = pool.receive(rank.peer, theirs, tokens, first=3)
            rank.tell(inbox.ticket)
            inbox.wait(60)
            given = -given
        layout.convert(source, given.view(torch.uint8), blocks, target, after.view(torch.uint8), theirs, tokens, target_first=3)
        assert rank.gives or same(here, after), ("push", mine, prefill, decode)
        rank.comm.barrier(timeout=60)
    return 2 * target.buffer_bytes


def speed(rank: Rank, mine: str, tokens: int, repeat: int) -> dict[str, float]:
    """GB/s of pages that are read; rank 0 times the digest of a lease, rank 1 the pulls."""
    source = Layout(PAGES.format(blocks=tokens // 16))
    found: dict[str, list[float]] = {}
    for name, text, digest in (
        ("pull", PAGES, False),
        ("pull with digests", PAGES, True),
        ("pull permuted", TURNED.replace("f32", "bf16"), False),
        ("pull permuted with digests", TURNED.replace("f32", "bf16"), True),
        ("pull cast to f32", TURNED, False),
        ("pull cast to fp8 with digests", TURNED.replace("f32", "f8_e4m3fn scale=0.5"), True),
    ):
        target = Layout(text.format(blocks=tokens // 16, half=tokens // 32))
        described = source if rank.gives else target
        given = cache(source, 1)
        here = placed(given if rank.gives else torch.zeros(target.buffer_bytes, dtype=torch.uint8), mine)
        order = np.random.default_rng(4).permutation(tokens // 16).tolist()
        into = list(range(target.blocks))
        with kv.Pool(rank.ctx, here, described) as pool:
            for number in range(repeat + 1):
                if rank.gives:
                    took, lease = rank.timed(lambda: pool.lease("s", order, digest=digest))  # noqa: B023
                    rank.tell(lease.ticket)
                    assert lease.wait(60) == "read"
                    if name == "pull with digests" and number:
                        found.setdefault("digest of a lease", []).append(source.buffer_bytes / took / 1e9)
                else:
                    rank.comm.barrier(timeout=60)
                    ticket = rank.tell()
                    begin = time.perf_counter()
                    pool.pull(rank.peer, ticket, into).wait(60)
                    if number:
                        found.setdefault(name, []).append(source.buffer_bytes / (time.perf_counter() - begin) / 1e9)
            if not rank.gives:
                after = torch.zeros(target.buffer_bytes, dtype=torch.uint8)
                layout.convert(source, given.view(torch.uint8), order, target, after, into, tokens)
                assert same(here, after), name
            rank.comm.barrier(timeout=60)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def model(seed: int) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(1031, 4096), torch.nn.LayerNorm(4096), torch.nn.Linear(4096, 4096, bias=False))


def module(rank: Rank, mine: str, repeat: int) -> dict[str, Any]:
    """A module's state, a second epoch, a bf16 copy of it."""
    trained = model(1)
    own = (trained if rank.gives else model(2)).to(mine)
    found: dict[str, list[float]] = {"weights pull": [], "weights commit": []}
    if rank.gives:
        with weights.publish(rank.ctx, weights.from_module(own), epoch=1) as source:
            rank.tell()
            rank.comm.barrier(timeout=120)
            with source.update(2), torch.no_grad():
                for one in own.parameters():
                    one.neg_()
            rank.tell()
            rank.comm.barrier(timeout=120)
        return {}
    rank.tell()
    source = weights.lookup(rank.ctx, rank.peer, timeout=60)
    with weights.plan(source, weights.from_module(own)) as plan:
        for number in range(repeat + 1):
            began = time.perf_counter()
            plan.pull(timeout=60).wait()
            pulled = time.perf_counter()
            plan.commit()
            ended = time.perf_counter()
            if number:
                found["weights pull"].append(plan.nbytes / (pulled - began) / 1e9)
                found["weights commit"].append(plan.nbytes / (ended - pulled) / 1e9)
        for name, one in own.state_dict().items():
            assert same(one, trained.state_dict()[name]), name
        rank.comm.barrier(timeout=120)
        rank.tell()
        plan.pull(epoch=2, timeout=60).wait()
        assert plan.commit() == 2
        for name, one in own.state_dict().items():
            assert same(one, -trained.state_dict()[name]), name
    half = {name: torch.zeros_like(one, dtype=torch.bfloat16) for name, one in own.state_dict().items()}
    with weights.plan(source, half) as plan:
        plan.pull(timeout=60).wait()
        plan.commit()
        for name, one in half.items():
            assert same(one, (-trained.state_dict()[name]).bfloat16()), name
    rank.comm.barrier(timeout=120)
    return {name: round(statistics.median(values), 2) for name, values in found.items()}


def layers(rank: Rank, mine: str, repeat: int, count: int) -> dict[str, float]:
    """GB/s of pulls into memory of the device, of their commit, and of one get of as many bytes."""
    rows, columns = 16384, 8192

    def tensor(number: int, rows: int) -> Any:
        values = torch.arange(rows * columns, device=mine) * 7919 + number
        return values.to(torch.int16).view(torch.bfloat16).view(rows, columns)

    if rank.gives:
        held = {f"layer {number}": tensor(number, rows) for number in range(count)}
        raw = rank.ctx.buffer(count * rows * columns, device=mine)
        with weights.publish(rank.ctx, held, epoch=1):
            rank.tell(bytes(raw.descriptor()))
            rank.comm.barrier(timeout=120)
        return {}
    into = {f"layer {number}": torch.zeros((rows // 2, columns), dtype=torch.bfloat16, device=mine) for number in range(count)}
    remote = rank.peer.import_buffer(hmc.Descriptor.parse(rank.tell()), timeout=60)
    local = rank.ctx.buffer(remote.nbytes, device=mine)
    found: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> None:
        began = time.perf_counter()
        call()
        found.setdefault(name, []).append(remote.nbytes / (time.perf_counter() - began) / 1e9)

    source = weights.lookup(rank.ctx, rank.peer, timeout=60)
    shards = {name: weights.shard(one, axis=0, rank=0, size=2) for name, one in into.items()}
    with weights.plan(source, shards, shadow=mine) as plan:
        for _ in range(repeat + 2):
            timed("layers: one get", lambda: rank.peer.get(local, remote).wait(60))
            timed("layers: pull", lambda: plan.pull(verify=False, timeout=60).wait())
            timed("layers: pull with digests", lambda: plan.pull(timeout=60).wait())
            timed("layers: commit", plan.commit)
    for number, one in enumerate(into.values()):
        assert torch.equal(one.view(torch.int16), tensor(number, rows // 2).view(torch.int16)), number
    rank.comm.barrier(timeout=120)
    return {name: round(statistics.median(values[2:]), 2) for name, values in found.items()}


def layer(rank: Rank, mine: str, device: str) -> int:
    """Dispatch and combine of random tokens, with the Buffer's rows on ``device``, compared with a sum on the CPU. Tokens."""
    total, scale = 0, torch.arange(1, 14)
    with experts.Buffer(rank.comm, experts=13, hidden=1030, tokens=64, topk=5, dtype="float32", device=device) as buffer:
        for number, tokens in enumerate((64, 0, 1, 33)):
            random = torch.Generator().manual_seed(2 * number + rank.comm.rank)
            x = torch.randn((tokens, 1030), generator=random)
            ids = (
                torch.stack([torch.randperm(13, generator=random)[:5] for _ in range(tokens)])
                if tokens
                else torch.zeros((0, 5)).long()
            )
            factors = torch.rand((tokens, 5), generator=random)
            x2, handle = buffer.dispatch((x / 2).to(mine) * 2, ids.to(mine), factors.to(mine), timeout=60)
            of_rows = torch.from_numpy(handle.experts[:, 0] + buffer.experts_of(rank.comm.rank).start)
            results = buffer.results(handle)
            results.copy_(x2 * scale[of_rows].to(x2.device)[:, None])
            y = buffer.combine(results, handle, timeout=60)
            wanted = torch.zeros_like(x)
            for choice in range(5):
                wanted += factors[:, choice : choice + 1] * (x * scale[ids[:, choice]][:, None])
            assert x2.device == torch.device(device if device != "cpu" else mine), x2.device
            assert torch.allclose(y.cpu(), wanted, rtol=1e-5, atol=1e-5)
            total += tokens
    return total


def worker(devices: list[str], tokens: int, repeat: int, only_pages: bool, tensors: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with hmc.init() as comm:
        rank = Rank(comm)
        pairs = [(devices[0], devices[1])]
        if not only_pages:
            pairs += [(devices[1], devices[0])]
            pairs += [pair for cpu in ("cpu", "hmc cpu") for pair in ((devices[0], cpu), (cpu, devices[1]))]
        for pair in dict.fromkeys(pairs):
            mine, name = pair[comm.rank], " -> ".join(pair)
            begin = time.perf_counter()
            found[name] = speed(rank, mine, tokens, repeat)
            if "hmc cpu" not in pair and not only_pages:
                found[name] |= {
                    "compared_bytes_of_pages": sum(pages(rank, mine, *layouts) for layouts in SMALL),
                    **module(rank, mine, repeat),
                    "tokens_of_experts": layer(rank, mine, mine) + layer(rank, mine, "cpu"),
                }
            if "cpu" not in "".join(pair):
                found[name] |= layers(rank, mine, repeat, tensors)
            on = [one.removeprefix("hmc ") for one in pair]
            found[name]["path"] = str(comm.path(1 - comm.rank, on[comm.rank], on[1 - comm.rank])).partition("\n")[0]
            found[name]["card"] = torch.cuda.get_device_name(mine) if mine.startswith("cuda") else "cpu"
            found[name]["seconds"] = round(time.perf_counter() - begin, 1)
            comm.barrier(timeout=60)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs=2, default=["cuda:0", "cuda:1"])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=32, help="of 256 MiB, pulled into a shadow on the second device")
    parser.add_argument("--only-pages", action="store_true", help="only pulls of pages from the first device to the second")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    job = importlib.import_module(Path(__file__).stem).worker  # classes of __main__ do not travel to other processes
    gives, takes = hmc.spawn(job, 2, chosen.devices, chosen.tokens, chosen.repeat, chosen.only_pages, chosen.tensors, timeout=300)
    found = {pair: {**gives[pair], **takes[pair]} for pair in takes}
    text = json.dumps(found, indent=2)
    print(text)
    if chosen.json:
        chosen.json.write_text(text)


if __name__ == "__main__":
    main()
