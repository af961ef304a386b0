"""A peer of the same user that sends random frames, signals and bytes: this process lives, and other peers' traffic is right.

``HMC_TEST_FUZZ_SECONDS`` is how long each transport is attacked, 5 unless set.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

SECONDS = float(os.environ.get("HMC_TEST_FUZZ_SECONDS", "5"))

# Serves until "stop" arrives: takes part in what every peer starts, and echoes what the honest one sends.
VICTIM = """
import sys, threading, time
import numpy as np
import hmc
transports = sys.argv[1]
left = []
context = hmc.Context(transports=transports, on_joined=lambda peer: None, on_left=lambda peer, error: left.append(str(error)))
big = context.buffer(1 << 20)
context.publish("big", big)
print(context.addresses[0], flush=True)
stopped = threading.Event()

def echo(peer):
    while True:
        size = np.zeros(1, np.int64)
        peer.recv(size, tag=1)
        if size[0] < 0:
            stopped.set()
            return
        data = np.empty(size[0], np.uint8)
        peer.recv(data, tag=2, timeout=60)
        peer.send(data, tag=3, timeout=60)

def entertain(peer):
    # Everything may fail, with an error of HMC whose text is text.
    out = np.zeros(2 << 20, np.uint8)
    works = []
    def attempt(call):
        try:
            return call()
        except hmc.HmcError as error:
            str(error).encode()
    for tag in range(8):
        works.append(attempt(lambda: peer.irecv(np.zeros(2 << 20, np.uint8), tag=tag)))
        works.append(attempt(lambda: peer.isend(out, tag=tag)))
        works.append(attempt(lambda: peer.isend(out[:100], tag=tag)))
        attempt(lambda: peer.notify(b"x"))
    remote = attempt(lambda: peer.lookup("theirs", timeout=0.5))
    if remote is not None:
        mine = context.buffer(len(remote))
        for _ in range(8):
            works.append(attempt(lambda: peer.put(mine, remote, notify=1)))
            works.append(attempt(lambda: peer.get(mine, remote)))
    for work in works:
        if work is None:
            continue
        work.add_done_callback(lambda work: work.error())
        attempt(lambda: work.wait(0.2))
        if not work.done:
            attempt(work.cancel)
    attempt(lambda: peer.notifications())
    attempt(lambda: peer.path())
    repr(peer), str(peer.name).encode()

while not stopped.is_set():
    try:
        peer = context.accept(timeout=0.2)
        threading.Thread(target=echo if peer.name == "honest" else entertain, args=(peer,), daemon=True).start()
    except hmc.HmcTimeoutError:
        pass
    except hmc.HmcError as error:
        str(error).encode()
assert all(text.encode() is not None for text in left)
print("alive", flush=True)
import os
os._exit(0)  # threads of attacked peers may wait for as long as their peers live
"""

HONEST = """
import sys, time
import numpy as np
import hmc
context = hmc.Context(transports=sys.argv[1], name="honest")
peer = context.connect(sys.argv[2], timeout=60)
generator = np.random.Generator(np.random.SFC64(7))
until = time.monotonic() + float(sys.argv[3])
rounds = 0
while rounds == 0 or time.monotonic() < until:
    data = generator.integers(0, 256, int(generator.choice([1, 100, 70_000, 1_500_000])), dtype=np.uint8)
    got = np.zeros_like(data)
    peer.send(np.array([data.size], np.int64), tag=1, timeout=60)
    work = peer.irecv(got, tag=3)
    peer.send(data, tag=2, timeout=60)
    work.wait(60)
    assert np.array_equal(got, data)
    rounds += 1
peer.send(np.array([-1], np.int64), tag=1, timeout=60)
print("right", flush=True)
"""

# Connects as any peer does, then writes what it likes: frames into its sockets, bytes into shared memory.
ATTACKER = """
import ctypes, os, random, re, socket, struct, sys, time
import numpy as np
import hmc
seed = int(sys.argv[3])
dice = random.Random(seed)
context = hmc.Context(transports=sys.argv[1])
theirs = context.buffer(100_000)
context.publish("theirs", theirs)
before = set(os.listdir("/proc/self/fd"))
peer = context.connect(sys.argv[2], timeout=30)
works = []
for tag in range(8):
    works.append(peer.isend(np.zeros(1 << 20, np.uint8), tag=tag))
    works.append(peer.irecv(np.zeros(4 << 20, np.uint8), tag=tag))
big = peer.lookup("big", timeout=10)
sockets = []
for name in os.listdir("/proc/self/fd"):
    try:
        if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
            continue
        one = socket.socket(fileno=os.dup(int(name)))
        one.getpeername()
        sockets.append((one.family, one))
    except OSError:
        pass
regions = []
for line in open("/proc/self/maps"):
    first, last, mode, path = re.match(r"(\\w+)-(\\w+) (\\S+) \\S+ \\S+ \\S+ *(.*)", line).groups()
    if "memfd" in path and mode.startswith("rw-s"):
        regions.append((int(first, 16), int(last, 16)))
def text():
    accents = "\\u00e9".encode()
    return dice.choice([b"\\xff\\xfe broken", accents * 200, b"a" * 255 + accents, b"shm", b"tcp", b"", b"\\x00\\n"])
def blob(data):
    return struct.pack("<I", len(data)) + data
def number():
    return struct.pack("<Q", dice.choice([0, 1, 2, 3, dice.randrange(64), dice.randrange(1 << 64), (1 << 64) - 1]))
def junk():
    return dice.randbytes(dice.choice([0, 1, 7, 8, 16, 33, 100, 1000]))
def body():
    return b"".join(dice.choice([number, junk, lambda: blob(text()), lambda: blob(junk()), lambda: bytes([dice.randrange(16)])])()
                    for _ in range(dice.randrange(6)))
def note():
    return blob(text()) + struct.pack("<IB", dice.randrange(3), dice.randrange(14)) + blob(text())
def control_frame():
    kind = dice.choice([4, *range(100, 109), *range(110, 116), 120, 121, 122, 130, dice.randrange(256)])
    payload = body()
    if dice.random() < 0.7:
        if kind in (102, 103, 106):
            payload = note()
        elif kind in (111, 121):
            payload = number() + bytes([dice.randrange(14)]) + blob(text()) + blob(junk())
        elif kind == 120:
            payload = number() + blob(text())
    return struct.pack("<IBBH", len(payload), kind, 0, 0) + payload
def signal():
    kind = dice.choice([1, 2, 3, 4, 4, 4, 5, 6, 7, 16, 17, 18, 19, 20, dice.randrange(256)])
    if kind in (4, 7) and dice.random() < 0.8:
        return bytes([kind]) + number() + struct.pack("<I", dice.randrange(14)) + blob(text())
    if kind in (1, 2):
        head = struct.pack("<IIIIq", kind, 0, 0, 0, dice.randrange(8))
        return head + (junk() if kind == 1 else number() + number() + blob(text()) + blob(text()) + blob(junk()))
    return bytes([kind]) + body()
def data_frame():
    kind = dice.choice([1, 1, 1, 2, 3, 4, 5, 6, 7, 8, dice.randrange(256)])
    payload = signal() if kind in (1, 3) else junk()
    return struct.pack("<BBHIQQQ", kind, 0, dice.choice([0, 1, 2]) if kind in (2, 6) else 0, len(payload),
                       dice.randrange(64) if kind != 1 else 0, dice.randrange(64) if kind not in (1, 7) else 0, 0) + payload
until = time.monotonic() + float(sys.argv[4])
while time.monotonic() < until:
    for family, one in sockets:
        if dice.random() < 0.3:
            try:
                one.send((control_frame if family == socket.AF_UNIX else data_frame)(), socket.MSG_DONTWAIT)
            except OSError:
                pass
    if dice.random() < 0.5 and regions:
        first, last = dice.choice(regions)
        data = dice.choice([junk, signal])()
        at = dice.randrange(first, last - len(data)) & ~7
        ctypes.memmove(at, data, len(data))
    try:
        work = dice.choice([
            lambda: peer.isend(np.frombuffer(signal(), np.uint8).copy(), tag=dice.randrange(8)),
            lambda: peer.isend(np.zeros(1 << 20, np.uint8), tag=dice.randrange(8)),
            lambda: peer.put(theirs[:1000], big[:1000], notify=junk()),
        ])()
    except hmc.HmcError:
        if not peer.alive:
            break
    time.sleep(0.002)
os._exit(0)
"""


def start(script: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "faulthandler", "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", env={**os.environ, **environment}
    )


@pytest.mark.timeout(SECONDS + 200)
@pytest.mark.parametrize("transports", ["shm", "tcp"])
def test_a_process_survives_a_hostile_peer(transports: str) -> None:
    seed = random.randrange(1 << 30)
    # Copies into this address space by the sender are left out: what they may overwrite late is not a matter of what a peer says.
    victim = start(VICTIM, transports, HMC_SHM_PTRACE="0")
    attackers: list[subprocess.Popen[str]] = []
    honest = None
    try:
        assert victim.stdout is not None
        address = victim.stdout.readline().strip()
        honest = start(HONEST, transports, address, SECONDS)
        until = time.monotonic() + SECONDS
        count = 0
        while time.monotonic() < until and victim.poll() is None:
            attackers = [one for one in attackers if one.poll() is None]
            if len(attackers) < 2:
                attackers.append(start(ATTACKER, transports, address, seed + count, 2))
                count += 1
            time.sleep(0.05)
        said, complaint = honest.communicate(timeout=90)
        end = (*victim.communicate(timeout=90), victim.returncode)
        assert (said, honest.returncode) == ("right\n", 0), (seed, complaint, end)
        assert (end[0], end[2]) == ("alive\n", 0), (seed, end)
        assert "Traceback" not in end[1], (seed, end[1])
    finally:
        for process in [victim, *attackers, *([honest] if honest else [])]:
            if process.poll() is None:
                process.kill()
            process.communicate()
