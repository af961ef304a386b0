"""Pool: the KV cache of one engine, over its own arrays."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence, Sized
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmc._arguments import flag, text, whole
from hmc._core import ConnBuffer, Context, Peer
from hmc._deadline import Deadline
from hmc._process import Owned
from hmc._scratch import Scratch
from hmc.errors import ClosedError, HmcTimeoutError, InvalidArgumentError
from hmc.kv._blocks import Blocks, Session, Use, numbers
from hmc.kv._cache import Cache, layout_of
from hmc.kv._counters import Counters
from hmc.kv._leases import Lease, Leases, lasting
from hmc.kv._listener import Listener
from hmc.kv._moves import check_tokens, side
from hmc.kv._pull import Pull
from hmc.kv._push import Push
from hmc.kv._receive import Inbox
from hmc.kv._remote import RemotePool
from hmc.kv._transfer import Transfer, Transfers
from hmc.kv._wire import INBOX, LEASE, MAX_BLOCKS, MAX_TOKENS, Description, Ticket
from hmc.layout import Layout

__all__ = ["Pool"]

_ROW_BYTES = 64 << 20
_MOST_ROWS = 1 << 24


class Pool(Owned):
    """The KV cache of one engine: its arrays, registered once and in place, and who has which pages.

    ``caches`` is an array, or a list of ``layout.buffers`` arrays, or ConnBuffers; C-contiguous, in CPU or device memory.
    ``layout`` is a :class:`hmc.layout.Layout`, or its text with the keywords of Layout: ``Pool(ctx, caches, "L | B kv N H D", L=32,
    B=1024, N=16, H=8, D=128, dtype="bf16")``. ``lease_blocks`` bounds the pages that all leases together have; by default twice the
    pool's, within 64 MiB of digests. Every peer of the Context may read the pages, and write them unless ``access="r"``.

    The pool's blocks are given to sessions by :meth:`allocate`. An engine that allocates blocks itself passes ``blocks=`` instead.
    Close it before its Context. Any thread.

    Pages of device memory travel from device to device where both sides have the same elements in the same order. The device
    converts and digests its pages where HMC has a kernel (NVIDIA, AMD); else the CPU does, over copies (``bytes_staged``).
    ``digest=False`` and ``verify=False`` leave digests out. Calls with ``stream=`` (a framework's; of the pool's device also an
    int or ``__cuda_stream__``) come after what is queued there; default: the current one of torch and CuPy. Others must be ready.
    """

    def __init__(
        self,
        ctx: Context,
        caches: Any,
        layout: Layout | str,
        *,
        access: str = "rw",
        lease_blocks: int | None = None,
        **given: Any,
    ) -> None:
        super().__init__()
        if not isinstance(ctx, Context):
            raise TypeError(f"ctx must be a hmc.Context, not a {type(ctx).__name__}")
        self.layout = layout_of(layout, given)
        self.ctx = ctx
        if lease_blocks is not None:
            lease_blocks = whole("lease_blocks", lease_blocks, 1, _MOST_ROWS)
        self.scratch = Scratch(ctx)
        self.counts = Counters()
        self.cache = Cache(ctx, caches, self.layout, access, self.scratch, self.counts)
        self.buffers = self.cache.buffers
        self.blocks = Blocks(self.layout.blocks)
        row_bytes = 8 * (1 + self.layout.layers[1] * self.layout.heads[1])
        rows = max(64, min(2 * self.layout.blocks, _ROW_BYTES // row_bytes)) if lease_blocks is None else lease_blocks
        self._remotes: dict[tuple[Peer, bytes], RemotePool] = {}
        self._lock = threading.Lock()
        self._closed = self._drained = False
        try:
            self.leases = Leases(ctx, self.layout, rows, self)
            self.listener = Listener(secrets.randbits(61), self._prune)
            self.transfers = Transfers(self.blocks, self._prune)
            self._described = self._describe()
            self.id = bytes(self._described.descriptor())
        except BaseException:
            self.cache.close(Deadline(5))  # the pool's parts refer to it: it lives until the collector runs
            raise

    def _describe(self) -> ConnBuffer:
        parts = [self.leases.row_buffer, self.leases.word_buffer, *self.buffers]
        data = Description(self.layout, [bytes(part.descriptor()) for part in parts]).encode()
        return self.ctx.register(np.frombuffer(bytearray(data), np.uint8), access="r")

    # ---- sessions ----

    def allocate(self, session: str, tokens: int) -> list[int]:
        """Gives a session blocks for so many tokens, and returns them. OutOfMemoryError when too few are free; ClosedError."""
        self._check_open()
        name, count = text("session", session), -(-whole("tokens", tokens, 1, MAX_TOKENS) // self.layout.block)
        if count > self.blocks.free_count:
            self.leases.sweep()
        return self.blocks.allocate(name, count)

    def free(self, session: str) -> None:
        """Ends what a session has here: leases, transfers, then its blocks. Returns at once; idempotent.

        Readers get LeaseExpiredError. Blocks that a transfer may still write become free when it has drained.
        """
        self._check_process()
        text("session", session)
        running = [transfer for transfer in self.transfers.running if transfer.session == session]
        self.blocks.free(session)  # first: an on_end() may begin another session of that name
        self.leases.end_of(session, "released")
        for transfer in running:
            transfer.cancel()

    @property
    def free_blocks(self) -> int:
        """Blocks that no session has, and nothing uses."""
        self._check_process()
        return self.blocks.free_count

    # ---- the prefill side ----

    def lease(
        self,
        session: str,
        blocks: Sequence[int] | None = None,
        tokens: int | None = None,
        *,
        first: int = 0,
        seconds: float = 30.0,
        peer: Peer | None = None,
        digest: bool = True,
        on_end: Callable[[Lease], None] | None = None,
        stream: Any = None,
    ) -> Lease:
        """Lets peers read pages of a session for some seconds; ``lease.ticket`` is what they need.

        ``blocks``: default the session's own. ``tokens``: default all that fit, from token ``first`` of the first block on. The
        lease ends when its reader has finished, when no heartbeat came for ``seconds``, when ``peer`` (the expected reader) is
        lost, and by ``release()`` or ``free(session)``. A pull sends a heartbeat every quarter of ``seconds``, 10 ms to 1 s apart,
        but none while it digests a layer or loads 64 MiB (a device: 1 GiB): ``seconds`` must be longer than that, and than delays
        of the reader's process. Below 0.1 a reader may lose its lease. Its pages must not change before ``on_end(lease)`` was
        called; the session's own blocks become free when it has returned. Errors of ``on_end`` go to ``threading.excepthook``. It
        may close the pool; it must not wait for another thread that does, which waits for it. With ``digest`` the pages are read
        once, here. Waits for what is queued on ``stream``, which writes the pages (see :class:`Pool`), until the pool is closed or
        ``peer`` is lost.

        Raises InvalidArgumentError, OutOfMemoryError (too many leases), PeerLostError, ClosedError.
        """
        self._check_open(*() if peer is None else (peer,))
        own = blocks is None
        text("session", session)
        seconds, digest = lasting(seconds), flag("digest", digest)
        if on_end is not None and not callable(on_end):
            raise TypeError(f"on_end must be callable or None, not a {type(on_end).__name__}")
        use = Use()
        try:
            chosen = self._chosen(self.blocks.use(session, use), blocks)
            first = whole("first", first, 0, MAX_TOKENS)
            tokens = self._tokens(tokens, chosen, first)
            check_tokens(self.layout, chosen, tokens, first)
            self.leases.wait_for(self.cache.marks(stream), session, peer)
            lease = self.leases.make(session, chosen, tokens, first, seconds, peer, digest, use, own, on_end)
        except BaseException:
            self.blocks.abandon(use)
            raise
        self.counts.add(session, leases=1)
        return lease

    def push(
        self,
        peer: Peer,
        ticket: bytes,
        blocks: Sequence[int] | None = None,
        *,
        session: str = "",
        first: int = 0,
        credits: int = 16,
    ) -> Push:
        """Starts to write pages into those that a peer's :meth:`receive` offers, layer by layer: ``push.ready(layer)``.

        ``blocks``: default the session's own; the session begins at token ``first`` of the first block. Tokens that the receiver
        has already (its ``skip``) stay here, and so do heads and layers that it does not have. At most ``credits`` layers are in
        flight or not yet checked by the receiver. Layers that become ready together are sent and checked as one group. Raises
        InvalidArgumentError, PeerLostError, ClosedError; what fails later is raised by the Push.
        """
        return self._push(peer, ticket, blocks, session, first, credits, moves=False)

    def migrate(
        self,
        peer: Peer,
        ticket: bytes,
        blocks: Sequence[int] | None = None,
        *,
        session: str,
        first: int = 0,
        stream: Any = None,
    ) -> Transfer:
        """Moves a session into the pages that a peer's :meth:`receive` offers: pushes all layers, then frees the session here.

        The session stays here, whole, unless the peer has accepted and verified every layer. A session that goes on meanwhile
        moves in two steps: first a push of the tokens that are complete, then, when it pauses, ``migrate`` to a ``receive`` that
        skips these. Pages are read behind what is queued on ``stream``. Raises and fails as :meth:`push`.
        """
        layers = range(self.layout.layers[0], sum(self.layout.layers))
        behind = self.cache.marks(stream)
        push = self._push(peer, ticket, blocks, session, first, len(layers), moves=True)
        push._migrate(layers, behind)
        return push

    def _push(
        self, peer: Peer, ticket: bytes, blocks: Sequence[int] | None, session: str, first: int, credits: int, *, moves: bool
    ) -> Push:
        self._check_open(peer)
        text("session", session)
        credits, first = whole("credits", credits, 1), whole("first", first, 0, MAX_TOKENS)
        offer = Ticket.decode(ticket, INBOX)
        use = Use()
        try:
            owner = self.blocks.use(session, use)
            source = side(self.layout, self._chosen(owner, blocks), offer.tokens, first + offer.skip)
            push = Push(self, peer, offer, session, source, credits, owner if moves else None)
            self.transfers.run(push, push._run, use)
        except BaseException:
            self.blocks.abandon(use)
            raise
        return push

    # ---- the decode side ----

    def pull(
        self,
        peer: Peer,
        ticket: bytes,
        blocks: Sequence[int] | None = None,
        *,
        session: str = "",
        first: int = 0,
        skip: int = 0,
        tokens: int | None = None,
        verify: bool = True,
        stream: Any = None,
    ) -> Transfer:
        """Reads the pages of a peer's lease into pages of this pool, and converts them where the layouts differ.

        ``skip`` leaves out as many tokens at the beginning of the lease (a prefix that is here already), ``tokens`` those behind
        so many. ``blocks`` are those of the tokens that travel, from token ``first`` of the first block on. Default: the session's
        own, of which the first ones hold the prefix. Layers and heads are those that both pools have. The lease ends with the pull,
        whatever its outcome, or expires where the peer cannot be reached. Pages are written behind what is queued on ``stream``.

        The Transfer fails with LeaseExpiredError or CorruptError (``verify``) where the pages are not those of the lease, with
        PeerLostError, InvalidArgumentError, HmcCancelledError. The pages then hold garbage.
        """
        self._check_open(peer)
        verify = flag("verify", verify)
        lease = Ticket.decode(ticket, LEASE)
        skip, first = whole("skip", skip, 0, MAX_TOKENS), whole("first", first, 0, MAX_TOKENS)
        tokens = lease.tokens - skip if tokens is None else whole("tokens", tokens, 1, MAX_TOKENS)
        if tokens < 1 or skip + tokens > lease.tokens:
            raise InvalidArgumentError(f"tokens {skip} to {skip + tokens - 1} of a lease of {lease.tokens}")
        transfer, use = Transfer(text("session", session), "pull"), Use()
        try:
            chosen = self._chosen(self.blocks.use(session, use), blocks)
            target = side(self.layout, chosen, tokens, first + (skip if blocks is None else 0))
            pull = Pull(self, peer, lease, transfer, target, skip, tokens, verify, self.cache.marks(stream))
            self.transfers.run(transfer, pull.run, use)
        except BaseException:
            self.blocks.abandon(use)
            raise
        return transfer

    def receive(
        self,
        peer: Peer,
        blocks: Sequence[int] | None = None,
        tokens: int | None = None,
        *,
        session: str = "",
        first: int = 0,
        skip: int = 0,
        verify: bool = True,
        timeout: float | None = None,
        stream: Any = None,
    ) -> Inbox:
        """Offers pages to a peer's :meth:`push`; ``inbox.ticket`` is what it needs. The Inbox ends when all layers have arrived.

        ``skip``: tokens of the session that are here already; the push begins behind them. ``tokens`` travel, into ``blocks`` from
        token ``first`` of the first block on. Defaults: the session's own blocks, of which the first ones hold the prefix, and all
        tokens that fit. Pages are written behind what is queued on ``stream`` now. ``timeout``: seconds until it ends with
        HmcTimeoutError by itself. It also fails with CorruptError (``verify``), PeerLostError, HmcCancelledError. The pages then
        hold garbage. Raises InvalidArgumentError, PeerLostError, ClosedError.
        """
        self._check_open(peer)
        text("session", session)
        verify = flag("verify", verify)
        skip, first, deadline = whole("skip", skip, 0, MAX_TOKENS), whole("first", first, 0, MAX_TOKENS), Deadline(timeout)
        use = Use()
        try:
            chosen = self._chosen(self.blocks.use(session, use), blocks)
            begin = first + (skip if blocks is None else 0)
            tokens = self._tokens(tokens, chosen, begin)
            target = side(self.layout, chosen, tokens, begin)
            ticket = Ticket.of_inbox(self.id, self.listener.tag, tokens, target.first, skip, verify, target.blocks)
            inbox = Inbox(self, peer, ticket, session, target, tokens, verify, deadline, self.cache.marks(stream))
            self.transfers.run(inbox, inbox._run, use)
        except BaseException:
            self.blocks.abandon(use)
            raise
        return inbox

    # ---- counters and the end ----

    def counters(self, session: str | None = None) -> dict[str, int]:
        """Counters by name: of a session (the last 4096 are kept), or of all and with what is held now."""
        self._check_process()
        if session is not None:
            return self.counts.of(text("session", session))
        held = {
            "transfers": len(self.transfers.running),
            "pushes_open": self.listener.sessions,
            "blocks_free": self.blocks.free_count,
        }
        return {**self.counts.totals, **self.leases.usage(), **held}

    def close(self, timeout: float | None = 10.0) -> None:
        """Ends leases and transfers, waits until they are done, and takes the pool back. Raises HmcTimeoutError; idempotent.

        Waits for every running ``on_end``: do not hold a lock that one takes. Called from an ``on_end`` it waits for no other.
        """
        self._check_process()
        deadline = Deadline(timeout)
        if self._drained:
            return
        self._closed = True
        self.transfers.close()
        for transfer in self.transfers.running:
            transfer.cancel()
        late = self.transfers.wait(deadline)
        if late is not None:
            raise HmcTimeoutError(
                f"close of a pool: a transfer of session {late.session!r} may still access its pages after {timeout} s; "
                "call close() again to go on waiting"
            )
        self.leases.close(deadline)
        self.listener.close()
        with self._lock:
            self._remotes.clear()
        self.cache.close(deadline)
        for buffer in [self._described, self.leases.row_buffer, self.leases.word_buffer]:
            buffer.close(deadline.left())
        self.scratch.close(deadline)
        self._drained = True

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- for the pool's parts ----

    def remote(self, peer: Peer, pool: bytes, check: Callable[[], None] = lambda: None) -> RemotePool:
        """A peer's pool, imported at the first use. ``check`` raises what ends the import early."""
        with self._lock:
            found = self._remotes.get((peer, pool))
        if found is None or not found.alive:
            found = RemotePool(peer, pool, self.scratch, 10.0, check)
            with self._lock:
                self._remotes[peer, pool] = found
            self.listener.watch(peer)
        return found

    def _prune(self) -> None:
        """Releases what was imported from pools that are closed and peers that are lost."""
        with self._lock:
            self._remotes = {key: one for key, one in self._remotes.items() if key[0].alive and one.alive}

    def _check_open(self, *peers: Peer) -> None:
        self._check_process()
        if self._closed:
            raise ClosedError("the pool is closed")
        for peer in peers:
            if not isinstance(peer, Peer):
                raise TypeError(f"peer must be a hmc.Peer, not {type(peer).__name__}")

    def _chosen(self, owner: Session, blocks: Sequence[int] | None) -> NDArray[np.uint64]:
        """The numbers of the blocks that a call names, or of all that the session has."""
        return numbers(self.blocks.of(owner) if blocks is None else blocks, MAX_BLOCKS, self.layout.blocks)

    def _tokens(self, tokens: int | None, blocks: Sized, first: int) -> int:
        """How many; None: all that fit from token ``first`` of the blocks on."""
        return len(blocks) * self.layout.block - first if tokens is None else whole("tokens", tokens, 1, MAX_TOKENS)
