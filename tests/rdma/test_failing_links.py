"""A link that fails in use: another transport takes over; it goes down and comes up again; it stays down."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

LINKS = """
import threading

def lose_all(action):
    for end in (0, 1):
        assert os.system(f"/sbin/tc qdisc {action} dev cable{end} root netem loss 100%") == 0

def link(state):
    for end in (0, 1):
        assert os.system(f"/sbin/ip link set cable{end} {state}") == 0
    for end in (0, 1):  # the kernel drops the routes of a link that is down
        if state == "up":
            assert os.system(f"/sbin/ip route replace 10.99.0.{2 - end} dev cable{end} table {200 + end}") == 0

def wait_until(reached, seconds=60):
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "60 seconds have passed"
        time.sleep(0.02)
"""

# Both ranks send and receive all the while.
FAILING_OVER = """
SIZES, LAST = [8, 4000, 0, 3000, 5, 77], 13
comm = hmc.init()
other = 1 - comm.rank
count = lambda name: comm.context.counters().get(name, 0)
assert comm.path(other).transport == "verbs", comm.path(other)
assert comm.path(other).runner_up.startswith("tcp"), comm.path(other)
target, source = comm.buffer(300_000), comm.buffer(300_000)
remote = comm.exchange(target, timeout=60)[other]
source.numpy()[:] = pattern(source.nbytes, comm.rank)
over = threading.Event()

def send():
    number = 0
    while not over.is_set():
        comm.send(pattern(SIZES[number % len(SIZES)], 2 * number + comm.rank), dst=other, tag=7, timeout=60)
        number += 1
    comm.send(pattern(LAST, number), dst=other, tag=7, timeout=60)

def receive():
    room, number = np.zeros(max(SIZES), np.uint8), 0
    while (info := comm.recv(room, src=other, tag=7, timeout=60)).bytes != LAST:
        assert info.bytes == SIZES[number % len(SIZES)], (number, info)
        assert np.array_equal(room[: info.bytes], pattern(info.bytes, 2 * number + other)), number
        number += 1
    assert np.array_equal(room[:LAST], pattern(LAST, number)), number
    try:
        info = comm.recv(room, src=other, tag=7, timeout=1)
    except hmc.HmcTimeoutError:
        return
    raise AssertionError(f"one more has come: {info}")

failures = []
def guarded(work):
    try:
        work()
    except BaseException as error:
        failures.append(error)
        raise

threads = [threading.Thread(target=guarded, args=[work]) for work in (send, receive)]
for thread in threads:
    thread.start()
comm.barrier(timeout=60)
time.sleep(0.3)
if comm.rank == 0:
    CUT
wait_until(lambda: count("routes.quarantined.verbs") > 0 or failures)
while True:  # verbs comes back too early, and fails again
    try:
        comm.put(source, remote, notify=3).wait(timeout=60)
        break
    except hmc.TransportError as error:
        assert "may have been written" in str(error) or "moved" in str(error), error
comm.wait_notify(other, 3, timeout=60)
assert np.array_equal(target.numpy(), pattern(target.nbytes, other))
comm.barrier(timeout=60)
if comm.rank == 0:
    MEND
wait_until(lambda: comm.path(other).transport == "verbs" or failures)  # tried again, and good
over.set()
for thread in threads:
    thread.join(timeout=90)
assert not failures, failures
assert count("routes.restored.verbs") > 0, comm.context.counters()
assert count("messages.moved") + count("signals.resent") > 0, comm.context.counters()
comm.barrier(timeout=60)
print("moved", count("messages.moved"), "sent again", count("signals.resent"))
comm.close(timeout=60)
"""

DOWN_FOR_GOOD = """
comm = hmc.init()
target, source, back = (comm.buffer(1 << 20) for _ in range(3))
remote = comm.exchange(target, timeout=60)[1 - comm.rank]
comm.barrier(timeout=60)
if comm.rank == 1:
    try:
        comm.recv(np.zeros(1, np.uint8), src=0, timeout=150)
    except hmc.PeerLostError:
        os._exit(0)
source.numpy()[:] = pattern(source.nbytes, 1)
comm.put(source, remote).wait(timeout=60)
comm.get(back, remote).wait(timeout=60)
assert np.array_equal(back.numpy(), source.numpy())
CUT
start = time.monotonic()
try:
    while time.monotonic() - start < 60:
        try:
            comm.put(source, remote).wait(timeout=60)
        except hmc.TransportError as error:
            assert "moved" in str(error), error
except hmc.PeerLostError as error:
    print(f"lost after {time.monotonic() - start:.1f} s: {error}", flush=True)
    os._exit(0)
raise AssertionError("60 seconds have passed")
"""


@pytest.fixture
def mended(run_in_guest: Callable[..., str]) -> Iterator[None]:
    """Afterwards the cable is as it was. With its link the kernel takes its routes and IPv6 addresses, and their GIDs, away."""
    yield
    run_in_guest("""
for end in 0 1; do
  tc qdisc del dev cable$end root 2>/dev/null
  ip link set cable$end up
done
for end in 0 1; do
  ip address replace fd99::$((end + 1))/64 dev cable$end nodad
  ip route replace 10.99.0.$((2 - end)) dev cable$end table $((200 + end))
  ip -6 route replace fd99::$((2 - end)) dev cable$end table $((200 + end))
done
for end in 0 1; do
  port=/sys/class/infiniband/rxe$end/ports/1
  for try in $(seq 200); do
    grep -q ACTIVE $port/state && grep -q fd99 $port/gids/2 && continue 2
    sleep 0.05
  done
  exit 1
done
""")


# Two cards for each process; the one cable is cut while both are used.
COMES_BACK = """
os.environ["HMC_NICS"] = f"rxe{int(os.environ['HMC_RANK']) % 2},rxe{int(os.environ['HMC_RANK']) % 2 + 2}"
comm = hmc.init()
source, target = comm.buffer(2 << 20), comm.buffer(2 << 20)
remote = comm.exchange(target, timeout=60)[1 - comm.rank]

def put_and_tell(seed):
    source.numpy()[:] = pattern(source.nbytes, 2 * seed + comm.rank)
    comm.put(source, remote, notify=1).wait(timeout=60)
    comm.wait_notify(1 - comm.rank, 1, timeout=60)
    assert np.array_equal(target.numpy(), pattern(target.nbytes, 2 * seed + 1 - comm.rank)), seed
    comm.barrier(timeout=60)

def packets(card):
    return int(open(f"/sys/class/infiniband/rxe{card}/ports/1/hw_counters/sent_pkts").read())

def carried(card):  # of one turn; its data is 500 packets
    before = packets(card)
    put_and_tell(card)
    return packets(card) - before > 100

put_and_tell(0)
if comm.rank == 0:
    lose_all("add")
for seed in range(3):
    put_and_tell(seed)
if comm.rank == 0:
    lose_all("del")
done, turn = np.zeros(1, np.uint8), 0
while not done[0]:  # rank 0 looks, both go on until it has seen it
    turn += 1
    assert turn < 300
    seen = carried(0) if comm.rank == 0 else put_and_tell(0)
    done[0] = bool(seen)
    if comm.rank == 0:
        comm.send(done, dst=1, timeout=60)
    else:
        comm.recv(done, src=0, timeout=60)
put_and_tell(5)
comm.close(timeout=60)
"""

CUTS = {
    "loss": ('lose_all("add")', 'lose_all("del")'),
    "down": ('link("down")', 'link("up")'),
}


@pytest.mark.timeout(200)
@pytest.mark.parametrize("cut", ["loss", pytest.param("down", marks=pytest.mark.slow)])
def test_tcp_takes_over_and_gives_back(run_verbs_job: Callable[..., str], mended: None, cut: str) -> None:
    """Messages arrive once and in order, over verbs, then over tcp, while verbs returns for the puts."""
    job = FAILING_OVER.replace("CUT", CUTS[cut][0]).replace("MEND", CUTS[cut][1])
    out = run_verbs_job(LINKS + job, timeout=150, HMC_TRANSPORTS="verbs,tcp", HMC_VERBS_TIMEOUT="16")
    assert "verbs broke down between this Context and" in out
    assert "another connection takes its place" in out
    assert out.count("moved") >= 2


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_link_goes_down_for_good(run_verbs_job: Callable[..., str], mended: None) -> None:
    out = run_verbs_job(LINKS + DOWN_FOR_GOOD.replace("CUT", 'link("down")'), timeout=150, HMC_VERBS_TIMEOUT="16")
    assert "lost after" in out


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_card_that_tries_for_ever(run_verbs_job: Callable[..., str], mended: None) -> None:
    """Soft-RoCE takes seven retries for endless ones and reports nothing: HMC itself gives up."""
    job = LINKS + DOWN_FOR_GOOD.replace("CUT", 'lose_all("add")')
    out = run_verbs_job(job, timeout=150, HMC_VERBS_TIMEOUT="16", HMC_VERBS_RETRIES="7", HMC_VERBS_SILENCE="5")
    assert "neither finished nor failed" in out


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_one_of_two_cards_comes_back(run_verbs_job: Callable[..., str], mended: None) -> None:
    out = run_verbs_job(LINKS + COMES_BACK, timeout=150, HMC_VERBS_TIMEOUT="16")
    assert "verbs connections to a peer is given up" in out
    assert "carries again (rxe0)" in out
