"""Leases: pages that others may read, with a generation that the reader checks after it has read.

The generation lies in a row per page beside the page's digests, in memory that peers can only read. A lease ends by zeroing the
generations; only then may its pages change. A reader that finds its generation after it has read has read the pages of the lease.
Heartbeats and the reader's end are words that the reader writes, so that the owner's engine has no part in either.
"""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hmc._arguments import number
from hmc._core import Context, Peer, StreamMark
from hmc._deadline import Deadline
from hmc._process import Owned, start_thread
from hmc._streams import wait_for
from hmc.errors import (
    ClosedError,
    HmcError,
    HmcTimeoutError,
    InvalidArgumentError,
    LeaseExpiredError,
    OutOfMemoryError,
    PeerLostError,
)
from hmc.kv._blocks import Use
from hmc.kv._wire import LEASE, Ticket
from hmc.layout import Layout

if TYPE_CHECKING:
    from hmc.kv._pool import Pool

__all__ = ["Lease", "Leases", "lasting"]

# Words of a lease, which its reader writes: generation of a heartbeat, its count, generation of the reader's end.
SLOT_WORDS = 4
SLOTS = 1024
_MOST_MILLISECONDS = (1 << 32) - 1  # that a ticket says
_TICK = 0.05  # seconds
# Seconds between two looks, beyond which this process did not run: heartbeats may have arrived that were not taken.
_PAUSE = 1.0


def lasting(seconds: float) -> float:
    """How long a lease lasts: more than 0 seconds."""
    found = number("seconds", seconds)
    if not found > 0:
        raise InvalidArgumentError(f"seconds is {found}; a lease lasts more than 0 seconds")
    return found


def _report() -> None:
    """Hands the current exception to threading.excepthook, whose own errors are printed, as those of a thread."""
    try:
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
    except BaseException:
        sys.excepthook(*sys.exc_info())


class Lease(Owned):
    """Pages of a session that a peer may read until the lease ends. Made by :meth:`Pool.lease`. Any thread."""

    def __init__(self, session: str, ticket: Ticket, seconds: float, peer: Peer | None) -> None:
        super().__init__()
        self.session = session
        self.ticket = ticket.encode()
        self.seconds = seconds
        self.reason = ""
        self.expires = time.monotonic() + seconds
        self._ticket = ticket
        self._peer = peer
        self._heartbeats = 0
        self._over = False
        self._leases: Leases | None = None
        # What Leases takes back, each once.
        self._rows: list[int] = []
        self._slots: list[int] = []
        self._use: Use | None = None
        self._own = False
        self._on_end: Callable[[Lease], None] | None = None

    @property
    def done(self) -> bool:
        """True once it has ended; ``reason`` says why: "read", "expired", "released", "peer lost", "closed"."""
        return self._over

    def wait(self, timeout: float | None = None) -> str:
        """Waits until it has ended and returns the reason. Raises HmcTimeoutError."""
        self._check_process()
        deadline = Deadline(timeout)
        if self._leases is not None and not self._leases.wait(self, deadline):
            raise HmcTimeoutError(f"the lease of session {self.session!r} is still held after {timeout} s")
        return self.reason

    def renew(self, seconds: float | None = None) -> None:
        """Lets it last ``seconds`` (default: as at first) from now on. Raises LeaseExpiredError where it has ended."""
        self._check_process()
        if self._leases is not None:
            self._leases.renew(self, self.seconds if seconds is None else lasting(seconds))

    def release(self) -> None:
        """Ends it: a reader that has not finished gets LeaseExpiredError. Idempotent."""
        self._check_process()
        if self._leases is not None:
            self._leases.end(self, "released")


class Leases:
    """The leases of a pool, and the memory that readers look at."""

    def __init__(self, ctx: Context, layout: Layout, rows: int, pool: Pool) -> None:
        self.row_words = 1 + layout.layers[1] * layout.heads[1]
        self.row_buffer = ctx.buffer(rows * self.row_words * 8, access="r")
        self.word_buffer = ctx.buffer(SLOTS * SLOT_WORDS * 8)
        self._rows = self.row_buffer.numpy(dtype=np.uint64, shape=(rows, self.row_words))
        self._words = self.word_buffer.numpy(dtype=np.uint64, shape=(SLOTS, SLOT_WORDS))
        self._pool = pool
        self._free_rows = deque(range(rows))
        self._free_slots = deque(range(SLOTS))
        self._generation = secrets.randbits(62) | 1
        self._held: dict[int, Lease] = {}
        self._looked = 0.0  # when sweep() began last, while leases are held
        self._ending: dict[Lease, int] = {}  # whose ``on_end`` runs, and on which thread
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # entered by its lock: a signal's handler may raise in its own methods
        self._closed = False
        self._sweeper: threading.Thread | None = None

    def wait_for(self, behind: list[StreamMark], session: str, peer: Peer | None) -> None:
        """Returns when the work behind the marks is over. ClosedError, PeerLostError: nobody will read what it writes."""

        def check() -> None:
            self._pool._check_open()
            if peer is not None and not peer.alive:
                raise PeerLostError(f"lease of session {session!r}: its reader {peer.name} is lost")

        check()
        wait_for(behind, check)

    def make(
        self,
        session: str,
        blocks: NDArray[np.uint64],
        tokens: int,
        first: int,
        seconds: float,
        peer: Peer | None,
        digest: bool,
        use: Use,
        own: bool,
        on_end: Callable[[Lease], None] | None,
    ) -> Lease:
        """Makes a lease of checked arguments: see Pool.lease(). Any thread.

        The thread that ends the lease frees the session's blocks where they are the lease's ``own``, calls ``on_end``, and releases
        ``use``. Raises ClosedError, OutOfMemoryError (too many leases, no thread); ``use`` is then the caller's to release.
        """
        table = self._digests(session, blocks, tokens, first) if digest else None
        if not self._has_room(len(blocks)):
            self.sweep()
        with self._lock:
            self._check_room(len(blocks))
            if not self._held:
                self._looked = time.monotonic()
            if self._sweeper is None:
                self._sweeper = start_thread(self._sweep_on, "hmc.kv leases")
            self._generation += 1
            generation = self._generation
            lasts = max(1, int(min(seconds * 1000, _MOST_MILLISECONDS)))  # of infinity, too
            numbers = blocks.astype(np.uint32)
            row_list: list[int] = []
            slots: list[int] = []
            try:  # each is taken by one call: an exception of a signal's handler loses none
                row_list.extend(islice(iter(self._free_rows.popleft, None), len(blocks)))
                slots.extend(islice(iter(self._free_slots.popleft, None), 1))
                rows = np.array(row_list, dtype=np.uint32)
                self._words[slots] = 0
                if table is not None:
                    self._rows[rows, 1:] = table
                self._rows[rows, 0] = generation
                ticket = Ticket(LEASE, self._pool.id, generation, slots[0], 0, tokens, first, 0, digest, numbers, rows, lasts)
                lease = Lease(session, ticket, seconds, peer)
                self._changed.notify_all()
                lease._leases, lease._rows, lease._slots = self, row_list, slots
                lease._use, lease._own, lease._on_end = use, own, on_end
                self._held[generation] = lease
                use.kept = True
            except BaseException:
                if not use.kept:
                    self._rows[row_list, 0] = 0
                    self._free_rows.extend(row_list)
                    self._free_slots.extend(slots)
                raise
        return lease

    def _digests(self, session: str, blocks: NDArray[np.uint64], tokens: int, first: int) -> Any:
        """Digests of pages, of shape (blocks, layers * heads)."""
        try:
            return self._pool.cache.digests(blocks, tokens, first, session=session).reshape(-1, len(blocks)).T
        except HmcError:
            self._pool._check_open()  # a pool that was closed meanwhile has no arrays
            raise

    def _has_room(self, blocks: int) -> bool:
        return blocks <= len(self._free_rows) and len(self._free_slots) > 0

    def _check_room(self, blocks: int) -> None:
        """Under the lock. Raises ClosedError, and OutOfMemoryError where there is no room for a lease of so many blocks."""
        if self._closed:
            raise ClosedError("the pool is closed")
        if not self._has_room(blocks):
            raise OutOfMemoryError(
                f"a lease of {blocks} blocks: rows for {len(self._free_rows)} and {len(self._free_slots)} of {SLOTS} leases are "
                "free; release leases, or give the pool more with lease_blocks="
            )

    def end(self, lease: Lease, reason: str) -> None:
        """Ends a lease, whose pages may change once it returns. Idempotent; any thread. Its ``on_end`` runs on this one."""
        generation, here = lease._ticket.generation, threading.get_ident()
        ours = False
        try:
            with self._lock:
                now = time.monotonic()
                if reason == "expired" and (now <= lease.expires or now - self._looked > _PAUSE):
                    return  # renewed meanwhile; or this process was paused, and the next sweep decides
                if generation not in self._held:
                    return
                ours = True  # from here on it ends, also where a signal's handler raises
                self._ending[lease] = here
                del self._held[generation]
                lease.reason = reason
                self._take_back(lease)
        finally:
            if ours:
                try:
                    self._finish(lease)
                finally:
                    self._finish(lease)  # an exception of a signal's handler may have ended the first call

    def _take_back(self, lease: Lease) -> None:
        """Zeroes the generations, before anything may change the pages. Idempotent; under the lock."""
        if lease._rows:
            self._rows[lease._rows, 0] = 0
        rows, lease._rows = lease._rows, []
        self._free_rows.extend(rows)
        slots, lease._slots = lease._slots, []
        self._free_slots.extend(slots)

    def _finish(self, lease: Lease) -> None:
        """What follows once nothing can be read any more. Idempotent: goes on where an exception has ended it."""
        with self._lock:
            self._take_back(lease)
        if lease._own and lease._use is not None and lease._use.session is not None:
            self._pool.blocks.free_session(lease._use.session)  # the name is free; the blocks are used until they are released
        on_end, lease._on_end = lease._on_end, None
        if on_end is not None:
            try:
                on_end(lease)
            except Exception:  # printed, as that of a thread, because the thread that ends a lease may be the sweeper
                _report()
        if lease._use is not None:
            self._pool.blocks.release(lease._use)
        with self._lock:
            self._ending.pop(lease, None)
            lease._over = True
            self._changed.notify_all()

    def wait(self, lease: Lease, deadline: Deadline) -> bool:
        """Returns when a lease has ended, with True, or at the deadline. Called by its own ``on_end``, at once."""
        with self._lock:
            while not lease._over and self._ending.get(lease) != threading.get_ident():
                left = deadline.left()
                if left == 0:
                    return False
                self._changed.wait(left)
        return True

    def renew(self, lease: Lease, seconds: float) -> None:
        """Lets a lease last ``seconds`` from now on. LeaseExpiredError where it has ended. Any thread."""
        with self._lock:
            if lease._ticket.generation not in self._held:
                raise LeaseExpiredError(f"renew of the lease of session {lease.session!r}: it has ended ({lease.reason})")
            lease.expires = time.monotonic() + seconds

    def end_of(self, session: str, reason: str) -> None:
        """Ends all leases of a session."""
        for lease in self.held:
            if lease.session == session:
                self.end(lease, reason)

    @property
    def held(self) -> list[Lease]:
        with self._lock:
            return list(self._held.values())

    def sweep(self) -> None:
        """Ends the leases that are over by now: read, expired, of a lost peer. Their ``on_end`` runs on this thread."""
        with self._lock:
            now = time.monotonic()
            pause, self._looked = now - self._looked, now
            if pause > _PAUSE:
                for lease in self._held.values():
                    lease.expires += pause - _PAUSE
        for lease in self.held:
            reason = self._look(lease)
            if reason:
                self.end(lease, reason)

    def _sweep_on(self) -> None:
        while True:
            with self._lock:
                while not self._held and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
            try:
                self.sweep()
            except BaseException:  # such as SystemExit of on_end: the other leases still end by themselves
                _report()
            time.sleep(_TICK)

    def _look(self, lease: Lease) -> str:
        """Why a lease is over, by the words that its reader wrote and the clock; "" where it is not."""
        ticket = lease._ticket
        beaten, beats, ended = (int(word) for word in self._words[ticket.slot][:3])
        if ended == ticket.generation:
            return "read"
        if beaten == ticket.generation and beats != lease._heartbeats:
            lease._heartbeats = beats
            with self._lock:  # a renewal for longer stays
                lease.expires = max(lease.expires, time.monotonic() + lease.seconds)
        if lease._peer is not None and not lease._peer.alive:
            return "peer lost"
        return "expired" if time.monotonic() > lease.expires else ""

    def close(self, deadline: Deadline) -> None:
        """Ends all leases. Waits until every ``on_end`` that runs on another thread has returned. HmcTimeoutError.

        Called from within an ``on_end``, it does not wait for others.
        """
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        for lease in self.held:
            self.end(lease, "closed")
        with self._lock:
            ending = dict(self._ending)
        if threading.get_ident() in ending.values():
            return  # called by an ``on_end``, which others may wait for
        for lease in ending:
            if not self.wait(lease, deadline):
                raise HmcTimeoutError(
                    f"close of a pool: on_end of the lease of session {lease.session!r} has not returned; call close() again"
                )

    def usage(self) -> dict[str, Any]:
        """Counters of what is held and free now."""
        with self._lock:
            return {"leases_held": len(self._held), "rows_free": len(self._free_rows), "slots_free": len(self._free_slots)}
