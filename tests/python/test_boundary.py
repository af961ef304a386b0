"""What crosses into Python and out of it: text from outside, objects that refer to each other, arguments of wrong types."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hmc


def test_hmc_testing_needs_no_import_of_its_own() -> None:
    script = "import hmc; print(sorted(hmc.testing.VENDORS)[0])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd="/")
    assert result.stdout == "cuda\n", result.stderr


# Every rank, launcher and command waits for it.
def test_importing_hmc_and_its_launcher_brings_neither_numpy_nor_asyncio() -> None:
    script = "import sys, hmc, hmc.cli.run; print({'numpy', 'asyncio'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd="/")
    assert result.stdout == "set()\n", result.stderr


@pytest.mark.parametrize("make", [lambda left: hmc.Context(on_left=left), lambda left: hmc.init(0, 1, on_joined=left)])
def test_a_context_whose_callback_is_a_method_of_its_owner_is_collected(make: Callable[[Any], Any]) -> None:
    class Owner:
        def __init__(self) -> None:
            self.context = make(self.called)

        def called(self, *arguments: object) -> None:
            del arguments

    owner = Owner()
    gone = weakref.ref(owner)
    del owner
    until = time.monotonic() + 20
    while gone() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)
    assert gone() is None


def test_callbacks_survive_the_collector() -> None:
    left = threading.Event()

    class Owner:
        def __init__(self) -> None:
            self.context = hmc.Context(on_left=self.called)

        def called(self, peer: hmc.Peer, error: hmc.HmcError | None) -> None:
            del peer, error
            left.set()

    owner = Owner()
    with hmc.Context() as other:
        other.connect(owner.context.addresses[0], timeout=20)
        owner.context.accept(timeout=20)
        for _ in range(3):
            gc.collect()
    assert left.wait(20)


@pytest.mark.parametrize("view", [lambda memory: memory, np.from_dlpack], ids=["memory", "dlpack"])
def test_freeing_memory_gives_up_the_gil(view: Callable[[Any], Any]) -> None:
    # A busy host stops the watcher now and then; a free that held the GIL would stop it for all of its time, every time.
    assert any(watched_beside_a_free(view) for _ in range(20))


def watched_beside_a_free(view: Callable[[Any], Any]) -> bool:
    """Whether another thread ran while memory was freed; True also where that was too short to tell."""
    memory: list[Any] = [hmc.Memory(256 << 20) for _ in range(2)]
    for one in memory:
        one.fill(1)
    memory = [view(one) for one in memory]
    del one
    longest = 0.0
    stop = threading.Event()

    def watch() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not stop.is_set():
            now = time.perf_counter()
            longest = max(longest, now - last)
            last = now

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    watcher = threading.Thread(target=watch)
    try:
        watcher.start()
        time.sleep(0.05)
        start = time.perf_counter()
        memory.clear()
        took = time.perf_counter() - start
        time.sleep(0.01)
    finally:
        stop.set()
        watcher.join()
        sys.setswitchinterval(interval)
    assert took > 0
    return longest < max(0.5 * took, 0.02) or took < 0.02


class Lazy:
    """As a torch tensor with its negative or conjugate bit set: the protocols hand on the plain values."""

    def __init__(self, *, neg: bool, conj: bool) -> None:
        self.array = np.arange(5.0)
        self.flags = neg, conj

    def is_neg(self) -> bool:
        return self.flags[0]

    def is_conj(self) -> bool:
        return self.flags[1]

    def __dlpack__(self, **settings: Any) -> Any:
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_lazily_negated_and_conjugated_tensors_are_refused() -> None:
    with hmc.init(0, 1) as comm:
        for neg, conj, remedy in ((True, False, "resolve_neg"), (False, True, "resolve_conj")):
            for call in (comm.isend, comm.irecv, comm.send):
                with pytest.raises(hmc.InvalidArgumentError, match=remedy):
                    call(Lazy(neg=neg, conj=conj), 0)
            with pytest.raises(hmc.InvalidArgumentError, match=remedy):
                comm.register(Lazy(neg=neg, conj=conj))
        got = np.zeros(5)
        work = comm.irecv(got, 0)
        comm.send(Lazy(neg=False, conj=False), 0, timeout=10)
        work.wait(10)
        assert np.array_equal(got, np.arange(5.0))


def test_torch_views_with_lazy_flags_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with hmc.init(0, 1) as comm:
        for view in (torch._neg_view(torch.arange(5.0)), torch.zeros(5, dtype=torch.complex64).conj()):
            with pytest.raises(hmc.InvalidArgumentError, match="resolve"):
                comm.isend(view, 0)


def test_type_errors_name_the_argument() -> None:
    x = np.zeros(4)
    with hmc.init(0, 1) as comm, hmc.Context() as context:
        wrong: list[tuple[Callable[..., Any], str]] = [
            (lambda: context.buffer("a"), "nbytes"),  # type: ignore[arg-type]
            (lambda: context.buffer(1.5), "nbytes"),  # type: ignore[arg-type]
            (lambda: comm.buffer(None), "nbytes"),  # type: ignore[arg-type]
            (lambda: comm.local[0].buffer("a"), "nbytes"),  # type: ignore[arg-type]
            (lambda: hmc.Memory("a"), "nbytes"),  # type: ignore[arg-type]
            (lambda: context.accept(timeout="5"), "timeout"),  # type: ignore[arg-type]
            (lambda: comm.send(x, 0, timeout="5"), "timeout"),  # type: ignore[arg-type]
            (lambda: comm.recv(x, 0, timeout=[]), "timeout"),  # type: ignore[arg-type]
            (lambda: comm.barrier("5"), "timeout"),  # type: ignore[arg-type]
            (lambda: comm.exchange(comm.buffer(4), timeout="5"), "timeout"),  # type: ignore[arg-type]
            (lambda: comm.send(x, "0"), "dst"),  # type: ignore[arg-type]
            (lambda: comm.irecv(x, "0"), "src"),  # type: ignore[arg-type]
            (lambda: comm.isend(x, 0, tag="a"), "tag"),  # type: ignore[arg-type]
            (lambda: comm.wait_notify(0, "a"), "id"),  # type: ignore[arg-type]
            (lambda: comm.wait_notify(0, 1, count="a"), "count"),  # type: ignore[arg-type]
            (lambda: comm.put(x, x), "source"),  # type: ignore[arg-type]
            (lambda: comm.put(comm.buffer(4), x), "target"),  # type: ignore[arg-type]
        ]
        for call, name in wrong:
            with pytest.raises(TypeError, match=name):
                call()
        for negative in (lambda: context.buffer(-4), lambda: comm.buffer(-4), lambda: hmc.Memory(-4), lambda: hmc.Memory(1 << 70)):
            with pytest.raises(hmc.InvalidArgumentError, match=r"nbytes .*(-4|1180591620717411303424)"):
                negative()


@pytest.mark.parametrize(
    "variable", ["HMC_TRANSPORTS", "HMC_TCP_STREAMS", "HMC_NICS", "HMC_CUDA_LIBRARY", "HMC_JOB_KEY", "HMC_LOG"]
)
def test_environment_that_is_not_utf8(variable: str) -> None:
    script = """
import hmc
hmc.info()
try:
    with hmc.Context() as context:
        context.addresses
    hmc.devices()
except hmc.HmcError as error:
    str(error).encode()
"""
    environment: dict[bytes, bytes] = {**os.environb, variable.encode(): b"sh\xffm,\xc3"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, cwd="/", env=environment)
    assert result.returncode == 0, result.stderr


def test_launchers_environment_that_is_not_utf8() -> None:
    script = """
import hmc
info = hmc.info()
try:
    hmc.init(timeout=1)
except hmc.HmcError as error:
    assert "\\ufffd" in str(error), error
else:
    raise AssertionError
"""
    environment = {**os.environb, b"HMC_RANK": b"0", b"HMC_SIZE": b"2", b"HMC_RENDEZVOUS": b"unix:/nowhere/\xff\xfe"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, cwd="/", env=environment)
    assert result.returncode == 0, result.stderr
