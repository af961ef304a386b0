"""A pull for which the process has no memory left while it posts: reads that it has posted end before it does."""

from __future__ import annotations

from collections.abc import Callable


def test_no_memory_amid_the_posts_of_a_pull(run_script: Callable[..., str]) -> None:
    run_script(
        """
import gc, resource, signal, threading, time
import kv_process
threading.stack_size(256 << 10)
theirs, kv_process.TEXT = "L=1 B=640 N=64 H=8 (kv D=128) bf16", "L=1 B=640 H=8 N=64 (kv D=128) bf16"  # runs of 512 bytes
with kv_process.this_process(transports="tcp") as mine:
    other = mine.start(theirs, '''
for line in sys.stdin:
    lease = pool.lease("s", list(range(json.loads(line)["blocks"])), seconds=600, digest=False)
    say(ticket=lease.ticket.hex())
''')
    def pull(blocks):
        other.tell(blocks=blocks)
        ticket = bytes.fromhex(other.read()["ticket"])
        other.kill(signal.SIGSTOP)  # nothing arrives until it goes on
        gc.collect()
        pages = int(open("/proc/self/statm").read().split()[0])
        limit = pages * resource.getpagesize() + (extra << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        try:
            found = mine.pool.pull(other.peer, ticket, list(range(blocks)), verify=False)
            try:
                found.wait(0.5)
            except hmc.HmcTimeoutError:
                return found
            except hmc.OutOfMemoryError:
                return None
        except (MemoryError, hmc.OutOfMemoryError):
            return None
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    extra = 1 << 20
    first = pull(1)  # imports the pool
    other.kill(signal.SIGCONT)
    if first is not None:
        first.wait(20)
    failed, before = 0, mine.array.copy()
    for extra in range(1, 100):
        found = pull(640)
        other.kill(signal.SIGCONT)
        if found is not None:  # there was memory enough
            found.wait(30)
            break
        failed += 1
        time.sleep(0.2)  # what it was asked for earlier arrives
        assert np.array_equal(mine.array, before), extra
    assert 0 < failed < 99, failed
""",
        {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"},
    )
