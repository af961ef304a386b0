"""A signal's handler that raises during a call which succeeds: the result is returned, then the exception is raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# The handler makes the call succeed, and raises. A chain of C functions keeps the result before the interpreter looks for signals.
PRELUDE = """
from patterns import pattern
import signal, time
from functools import partial
from operator import length_hint

class Alarm(Exception):
    pass

with hmc.Context(transports="{transport}") as a, hmc.Context(transports="{transport}") as b:
    ab = a.connect(b.addresses[0], timeout=20)
    ba = b.accept(timeout=20)
    target, source = b.buffer(4096), a.buffer(4096)
    remote = ab.import_buffer(target.descriptor(), timeout=20)
    b.publish("mark", target)
    number = 0

    def arrive():
        "Returns when what b did before has arrived."
        tick, tock = np.zeros(4096, np.uint8), np.zeros(4096, np.uint8)
        ba.isend(tick, tag=99)
        ab.recv(tock, tag=99, timeout=20)
        ba.notify(99, timeout=20)
        ab.wait_notify(99, timeout=20)
        ab.lookup("mark", timeout=20)
        time.sleep(0.05)

    def arrange(succeed, arguments):
        "Sets an alarm. Its handler acts only once a call has taken the first argument from this iterator."
        untaken = length_hint(arguments)
        def handler(*_):
            if length_hint(arguments) == untaken:
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                return
            succeed()
            arrive()
            raise Alarm
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    def kept(succeed, call, argument):
        "The result of a call during which the handler raises: neither is lost."
        got, raised, arguments = [], 0, iter((argument,))
        try:
            arrange(succeed, arguments)
            got.extend(map(call, arguments))
            time.sleep(20)
        except Alarm:
            raised += 1
        assert raised == 1 and len(got) == 1, (raised, got)
        return got[0]
"""

KEPT = {
    "wait_notify": """
        kept(lambda: ba.notify(3, timeout=20), partial(ab.wait_notify, timeout=20), 3)
        try:
            ab.wait_notify(3, timeout=0)
        except hmc.HmcTimeoutError:
            pass
        else:
            raise SystemExit("the notification was there twice")
    """,
    "notifications": """
        text = b"number %d" % number
        assert [found for _, found in kept(lambda: ba.notify(text, timeout=20), ab.notifications, 20)] == [text]
    """,
    "recv": """
        out = np.zeros(4096, np.uint8)
        found = kept(lambda: ba.isend(pattern(4096, number), tag=4), partial(ab.recv, tag=4, timeout=20), out)
        assert found.bytes == 4096 and np.array_equal(out, pattern(4096, number))
    """,
    "wait": """
        out = np.zeros(4096, np.uint8)
        work = ab.irecv(out, tag=5)
        kept(lambda: ba.isend(pattern(4096, number), tag=5), work.wait, 20)
        assert np.array_equal(out, pattern(4096, number))
    """,
    "lookup": """
        shared = b.buffer(64)
        found = kept(lambda: b.publish(f"name {number}", shared), partial(ab.lookup, timeout=20), f"name {number}")
        assert found.nbytes == 64
    """,
}


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("call", KEPT)
def test_a_result_comes_before_the_exception(run_script: Callable[..., str], transport: str, call: str) -> None:
    run_script(PRELUDE.format(transport=transport) + "\n    for number in range(3):" + KEPT[call].rstrip() + "\n", {})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_interrupted_accept_leaves_the_peer_to_the_next(run_script: Callable[..., str], transport: str) -> None:
    source = """
    made, peers, c, arguments = [], [], hmc.Context(), iter((20,))
    try:
        arrange(lambda: made.append(c.connect(a.addresses[0], timeout=20)), arguments)
        peers.extend(map(a.accept, arguments))
        time.sleep(20)
    except Alarm:
        pass
    if not peers:
        peers.append(a.accept(timeout=20))
    sending = made[0].isend(pattern(100, 1), tag=6)
    out = np.zeros(100, np.uint8)
    peers[0].recv(out, tag=6, timeout=20)
    sending.wait(20)
    assert np.array_equal(out, pattern(100, 1))
    c.close()
    """
    run_script(PRELUDE.format(transport=transport) + source, {})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_the_next_call_of_a_chain_ends_with_the_exception(run_script: Callable[..., str], transport: str) -> None:
    """The interpreter does not look between them, and the second call would wait for its deadline."""
    source = """
    got, arguments = [], iter((3, 3))
    started = time.monotonic()
    try:
        arrange(lambda: ba.notify(3, timeout=20), arguments)
        got.extend(map(partial(ab.wait_notify, timeout=45), arguments))
    except Alarm:
        pass
    else:
        raise SystemExit("the handler's exception was lost")
    assert len(got) == 1 and time.monotonic() - started < 30
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    ba.notify(3, timeout=20)
    ab.wait_notify(3, timeout=20)  # nothing is raised again
    """
    run_script(PRELUDE.format(transport=transport) + source, {})


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_no_notification_is_lost_beside_alarms(run_script: Callable[..., str], transport: str) -> None:
    source = """
    import threading
    SENT = 400
    def send():
        for number in range(SENT):
            ba.notify(7, timeout=20)
            ba.notify(b"%d" % number, timeout=20)
            time.sleep(random.random() * 0.004)
    import itertools, random
    armed = False  # else an alarm would be raised between two rounds
    def alarm(*_):
        global armed
        if armed:
            armed = False
            time.sleep(random.random() * 0.003)
            raise Alarm
    hits, until = 0, time.monotonic() + 45
    while hits <= 20 and time.monotonic() < until:  # once, where the calls wait for the sender
        counted, texts = [], []
        sender = threading.Thread(target=send)
        signal.signal(signal.SIGALRM, alarm)
        sender.start()
        while (len(counted) < SENT or len(texts) < SENT) and time.monotonic() < until:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-4, 2e-2))
                armed = True
                if len(counted) < SENT:
                    counted.extend(map(partial(ab.wait_notify, timeout=20), (7,)))
                if len(texts) < SENT:
                    texts.extend(itertools.chain.from_iterable(map(ab.notifications, (20,))))
                armed = False
            except Alarm:
                hits += 1
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        sender.join(20)
        assert len(counted) == SENT and [text for _, text in texts] == [b"%d" % number for number in range(SENT)]
    assert hits > 20, hits
    """
    run_script(PRELUDE.format(transport=transport) + source, {})
