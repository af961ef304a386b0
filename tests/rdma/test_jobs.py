"""Whole jobs over verbs: processes on two devices, every byte compared; and their bad days."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from .pieces import ALL_TO_ALL, BLOCKS, CLOSED_IN_USE, MESSAGES, PUTS, PUTTING, SIZES

CABLE = """
import threading

def cable(action, options=""):
    for end in (0, 1):
        assert os.system(f"/sbin/tc qdisc {action} dev cable{end} root {options}") == 0
"""


@pytest.fixture
def mended(run_in_guest: Callable[..., str]) -> Iterator[None]:
    yield
    run_in_guest("for end in 0 1 2 3; do tc qdisc del dev cable$end root; done 2>/dev/null; true")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_messages_puts_gets_and_blocks(run_verbs_job: Callable[..., str]) -> None:
    job = f"""
with hmc.init() as comm:
    print(comm.path(1 - comm.rank))
    messages(comm, {SIZES})
    puts(comm, {SIZES})
    blocks(comm, 700, 4104)
"""
    assert "verbs (rxe" in run_verbs_job(MESSAGES + PUTS + BLOCKS + job, timeout=150)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_all_to_all(run_verbs_job: Callable[..., str]) -> None:
    run_verbs_job(ALL_TO_ALL, ranks=4, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_bad_cable(run_verbs_job: Callable[..., str], mended: None) -> None:
    """2 % loss and 1 ms of delay; cut for two seconds; cut for good."""
    job = f"""
if comm.rank == 0:
    cable("add", "netem loss 2% delay 1ms")
comm.barrier(timeout=60)
messages(comm, {SIZES[:-1]})
puts(comm, {SIZES[:-1]})
if comm.rank == 0:
    cable("del")
    cut = time.monotonic()
    for seed in range(4):
        if seed == 1:
            cable("add", "netem loss 100%")
            threading.Thread(target=lambda: (time.sleep(2), cable("del"))).start()
        put_and_compare(seed)
    assert time.monotonic() - cut > 2
    cable("add", "netem loss 100%")
    start = time.monotonic()
    put_until_lost()
try:
    comm.recv(back, src=0, timeout=90)
except hmc.PeerLostError:
    os._exit(0)
"""
    # 1 s, seven times: the two seconds become more on a busy machine.
    out = run_verbs_job(MESSAGES + PUTS + CABLE + PUTTING + job, timeout=150, HMC_VERBS_TIMEOUT="18")
    assert "does not answer any more" in out


# Two cards for each process, on cables of their own; both are to be used.
TWO_CARDS = """
os.environ["HMC_NICS"] = f"rxe{int(os.environ['HMC_RANK']) % 2},rxe{int(os.environ['HMC_RANK']) % 2 + 2}"

def packets(card):
    return int(open(f"/sys/class/infiniband/rxe{card}/ports/1/hw_counters/sent_pkts").read())

def cut(cable):
    for end in (cable, cable + 1):
        assert os.system(f"/sbin/tc qdisc add dev cable{end} root netem loss 100%") == 0
"""


@pytest.mark.timeout(200)
def test_two_cards_share_a_transfer(run_verbs_job: Callable[..., str]) -> None:
    job = """
with hmc.init() as comm:
    print(comm.path(1 - comm.rank))
    before = [packets(card) for card in range(4)]
    puts(comm, [7, 65537, (5 << 20) + 1])
    blocks(comm, 200, 4104)
    sent = [packets(card) - at for card, at in enumerate(before)]
    assert min(sent[comm.rank :: 2]) > 500, sent
"""
    out = run_verbs_job(TWO_CARDS + PUTS + BLOCKS + job, timeout=150)
    assert "verbs (rxe0 and rxe2, 2 connections" in out


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("cable", [0, 2])
def test_one_of_two_cards_fails(run_verbs_job: Callable[..., str], mended: None, cable: int) -> None:
    """What it was to carry goes by the other, under puts, gets and messages both ways; then that one fails, too."""
    job = f"""
comm.barrier(timeout=60)
messages(comm, {SIZES[:-1]})
if comm.rank == 0:
    threading.Thread(target=lambda: (time.sleep(0.5), cut({cable}))).start()
    while time.monotonic() - start < 12:
        put_and_compare(int(time.monotonic()))
comm.barrier(timeout=60)
messages(comm, {SIZES[:-1]})
puts(comm, {SIZES[:-1]})
if comm.rank == 0:
    cut({2 - cable})
    start = time.monotonic()
    put_until_lost()
try:
    comm.recv(back, src=0, timeout=90)
except hmc.PeerLostError:
    os._exit(0)
"""
    out = run_verbs_job(TWO_CARDS + MESSAGES + PUTS + "import threading\n" + PUTTING + job, timeout=150, HMC_VERBS_TIMEOUT="15")
    assert "verbs connections to a peer is given up" in out
    assert "does not answer any more" in out


@pytest.mark.timeout(150)
def test_a_peer_killed_while_it_is_written_to(run_verbs_job: Callable[..., str]) -> None:
    job = """
if comm.rank == 1:
    time.sleep(2)
    os.kill(os.getpid(), 9)
put_until_lost()
"""
    assert "lost after" in run_verbs_job(PUTTING + job, status=137)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_doctor_sees_the_devices(run_in_guest: Callable[..., str], hmc_command: str) -> None:
    out = run_in_guest(f"{hmc_command} doctor", 90)
    assert "rxe0 port 1: ACTIVE, Ethernet" in out
    assert "RDMA: verbs: rxe0 port 1 (RoCE v2), rxe1 port 1 (RoCE v2)" in out
    assert "memory of devices is not reached" in out


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_too_little_memory_may_be_locked(run_verbs_job: Callable[..., str]) -> None:
    job = """
import glob, resource
for device in glob.glob("/dev/infiniband/*"):
    os.chmod(device, 0o666)
large, small, received = pattern(8 << 20, 1), pattern(200_000, 2), np.zeros(200_000, np.uint8)
resource.setrlimit(resource.RLIMIT_MEMLOCK, (2 << 20, 2 << 20))
os.environ["XDG_RUNTIME_DIR"] = "/tmp"
os.setuid(65534)  # root may lock what it wants
with hmc.Context() as here, hmc.Context() as there:
    peer = here.connect(there.addresses[0], timeout=60)
    other = there.accept(timeout=60)
    try:
        peer.send(large, timeout=60)
    except hmc.OutOfMemoryError as error:
        assert "RLIMIT_MEMLOCK is 2048 KiB" in str(error) and "ulimit -l" in str(error), error
    else:
        raise AssertionError("8 MiB were locked")
    # What is small enough goes on.
    work = other.irecv(received)
    peer.send(small, timeout=60)
    work.wait(timeout=60)
    assert np.array_equal(small, received)
"""
    run_verbs_job(job, ranks=1)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_buffers_closed_while_they_are_used(run_verbs_job: Callable[..., str]) -> None:
    """The owner asks those who use it to stop first, so the card never refuses anything and the connection lives on."""
    job = """
with hmc.init() as comm:
    closed_in_use(comm, 12)
    puts(comm, [1 << 20])
"""
    assert run_verbs_job(PUTS + CLOSED_IN_USE + job, timeout=150).count("turn") == 12


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_between_ipv6_addresses(run_in_guest: Callable[..., str], run_verbs_job: Callable[..., str]) -> None:
    job = f"""
with hmc.init() as comm:
    print(comm.buffer(64).native("verbs")[0]["gid"])
    messages(comm, {SIZES[:-1]})
    puts(comm, {SIZES[:-1]})
"""
    addresses = {end: f"10.99.0.{end + 1}/24 dev cable{end}" for end in (0, 1)}
    run_in_guest("; ".join(f"ip address del {address}" for address in addresses.values()))
    try:
        out = run_verbs_job(MESSAGES + PUTS + job, timeout=120)
    finally:
        run_in_guest("; ".join(f"ip address add {address}" for address in addresses.values()))
    assert "fd99:0000:0000:0000:0000:0000:0000:0001" in out
    assert "fd99:0000:0000:0000:0000:0000:0000:0002" in out


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_two_contexts_and_64_peers_in_one_process(run_verbs_job: Callable[..., str]) -> None:
    """Rank 0 has two Contexts, rank 1 has 64: each of the two is joined with half of them, and all move bytes at once."""
    job = """
import contextlib
count, size = 64, 100_003
rank, place = int(os.environ["HMC_RANK"]), "/tmp/hmc_64_addresses"

def wait_for(what):
    end = time.monotonic() + 200
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)

with contextlib.ExitStack() as stack:
    if rank == 1:
        contexts = [stack.enter_context(hmc.Context()) for _ in range(count)]
        buffers = [context.buffer(size) for context in contexts]
        for i, (context, buffer) in enumerate(zip(contexts, buffers)):
            context.publish("target", buffer)
        with open(place + ".new", "w") as file:
            file.write(chr(10).join(context.addresses[0] for context in contexts))
        os.rename(place + ".new", place)
        peers = [context.accept(timeout=200) for context in contexts]
        for i, peer in enumerate(peers):
            peer.wait_notify(i, timeout=200)
            assert np.array_equal(buffers[i].numpy(), pattern(size, i)), i
            peer.send(pattern(5000, 100 + i), timeout=100)
        for i, peer in enumerate(peers):
            into = np.zeros(7, np.uint8)
            peer.recv(into, timeout=200)
            assert np.array_equal(into, pattern(7, 200 + i)), i
        print("all", count)
    else:
        wait_for(lambda: os.path.exists(place))
        addresses = open(place).read().split()
        contexts = [stack.enter_context(hmc.Context()) for _ in range(2)]
        sources, works, peers = [], [], []
        for i, address in enumerate(addresses):
            context = contexts[i % 2]
            peers.append(context.connect(address, timeout=100))
            sources.append(context.buffer(size))
            sources[i].numpy()[:] = pattern(size, i)
            assert peers[i].path("cpu", "cpu").transport == "verbs", peers[i].path("cpu", "cpu")
            works.append(peers[i].put(sources[i], peers[i].lookup("target", timeout=100), notify=i))
        for i, peer in enumerate(peers):
            works[i].wait(timeout=200)
            into = np.zeros(5000, np.uint8)
            peer.recv(into, timeout=200)
            assert np.array_equal(into, pattern(5000, 100 + i)), i
        print("peers", sum(len(context.peers) for context in contexts))
        for i, peer in enumerate(peers):
            peer.send(pattern(7, 200 + i), timeout=100)
        wait_for(lambda: not any(context.peers for context in contexts))
"""
    out = run_verbs_job(job, timeout=220)
    assert "all 64" in out
    assert "peers 64" in out
