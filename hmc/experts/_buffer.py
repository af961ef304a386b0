"""The Buffer: what a program calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from hmc import _core
from hmc._arguments import whole
from hmc._deadline import Deadline
from hmc._interrupts import take
from hmc._process import Owned
from hmc.errors import ClosedError, DeviceError, HmcError, HmcTimeoutError, InvalidArgumentError, PeerLostError, ProtocolError
from hmc.experts._arrays import Rows
from hmc.experts._calls import Call, Combine, Dispatch
from hmc.experts._fabric import CLOSED, READ, SLOTS, Fabric
from hmc.experts._handle import Handle, State
from hmc.experts._intake import Intake
from hmc.experts._peers import Outcome, names
from hmc.experts._shape import Shape


class Buffer(Owned):
    """Dispatch and combine for a layer of experts over the ranks of a Communicator.

    Every rank makes one with the same arguments, within ``timeout`` seconds (collective).

    - ``experts``: number of experts of all ranks together; rank r has :meth:`experts_of` (r). ``hidden``: columns of a row.
    - ``tokens``: largest number of tokens of a rank in one call. ``topk``: largest number of experts of a token, default 8.
    - ``dtype``: "bfloat16", "float16", "float32", or "float8_e4m3fn" with a float32 scale for each 128 columns.
    - ``combine_dtype``: of the experts' results; default as ``dtype``, bfloat16 for fp8.
    - ``device``: of the rows of this rank, which may differ from rank to rank, such as "cuda:0". Rows travel between the ranks'
      devices. A device sums its tokens' results where HMC has a kernel for it (NVIDIA, AMD), else the CPU does.
    - ``once``: False: x2 has a row for each token and expert. True: for each token and rank, which moves fewer bytes; the rank
      returns one weighted sum for it.

    Every rank makes the same calls in the same order. A rank that dies takes no further part; no call fails for that. Any thread
    may call; calls wait for each other. A signal handler may not call while its thread is in a call (InvalidArgumentError): where
    it raises instead, :meth:`resume` continues. Close the Buffer before the Communicator.

    Raises InvalidArgumentError (an argument, other arguments on another rank, several local Members), HmcTimeoutError,
    PeerLostError, OutOfMemoryError; HmcCancelledError, which names a rank that could not make its Buffer, and why.
    """

    def __init__(
        self,
        comm: _core.Communicator,
        experts: int,
        hidden: int,
        tokens: int,
        *,
        topk: int | None = None,
        dtype: Any = "bfloat16",
        combine_dtype: Any = None,
        once: bool = False,
        device: Any = "cpu",
        timeout: float | None = 60.0,
    ) -> None:
        super().__init__()
        deadline = Deadline(timeout)
        if not isinstance(comm, _core.Communicator):
            raise TypeError(f"experts.Buffer: comm must be a hmc.Communicator, not a {type(comm).__name__}")
        if len(comm.local) != 1:
            raise InvalidArgumentError(f"experts.Buffer: this process has {len(comm.local)} Members; pass a Communicator with one")
        self._shape = Shape.of(comm.size, experts, hidden, tokens, topk, dtype, combine_dtype, once)
        own = comm.split(0, timeout=deadline.left())
        assert own is not None
        try:
            self._fabric = Fabric(own, self._shape, str(device), deadline)
        except BaseException:
            with contextlib.suppress(HmcError):
                own.close(0)
            raise
        self._lock = threading.Lock()
        self._callers: set[int] = set()  # threads in _in_turn()
        self._intake = Intake()
        self._number = 0
        self._open: dict[int, Handle] = {}
        self._pending: Call | None = None
        self._undelivered: list[Any] = []
        self._read_by: dict[int, list[Any]] = {}
        self._failure = ""
        self._refused = False  # what another rank sent, by the pending call
        self._closing = self._closed = False

    # ---- what is where ----

    @property
    def alive(self) -> tuple[bool, ...]:
        """By rank: False once it died, closed its Buffer or was masked."""
        return self._fabric.peers.alive()

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self._fabric.peers.rank

    def experts_of(self, rank: int) -> range:
        """The experts of a rank, contiguous; numbers of any two ranks differ by at most one. InvalidArgumentError."""
        return self._shape.experts_of(whole("rank", rank, 0, self._shape.ranks - 1))

    def counters(self) -> dict[str, int]:
        """Counters by name since creation. Any thread.

        - ``bytes_staged``: of rows that this rank copied between its device and CPU memory: x, x2, results and y that lie elsewhere
          than the Buffer's rows, and results that the CPU summed. What transports stage, Context.counters() counts.
        - ``sums_on_device``, ``sums_on_cpu``: combines, by where y was computed.
        """
        return self._fabric.counts.all()

    # ---- calls ----

    def dispatch(self, x: Any, topk_ids: Any, topk_weights: Any, *, timeout: float | None = None) -> tuple[Any, Handle]:
        """Sends the row of every token to the ranks of its experts. Returns (x2, handle).

        - ``x``: (tokens, hidden) of the Buffer's dtype; for fp8 a pair (x, scales), scales float32 of (tokens, hidden / 128).
          NumPy arrays of uint16 and uint8 stand for bfloat16 and fp8. The number of tokens may be 0.
        - ``topk_ids``: integers of (tokens, top k); -1 for none; no expert twice in a row.
        - ``topk_weights``: of the same shape; converted to float32.

        x2 has the rows that this rank's experts take, grouped by expert (``handle.rows(e)``), then by source rank and token. With
        ``once`` it has each token once, by source rank and token, and ``handle.experts`` and ``handle.weights`` say what it takes.
        x2 is an array like x: of NumPy, of torch, or a Tensor; for fp8 a pair. It lies on the Buffer's ``device`` (a Tensor there,
        where x is of NumPy), belongs to the Buffer, and the second dispatch after this one overwrites it. From a Buffer on the CPU
        x2 is a copy on the device of x. Rows of torch and CuPy are read behind what is queued on their current streams; device
        memory of others must be ready.

        At most two dispatches are without their combine. HmcTimeoutError names the ranks that have not called dispatch;
        :meth:`resume` continues. Where it names x, topk_ids or topk_weights, whose stream is behind, the call had not begun and may
        be repeated. InvalidArgumentError, ClosedError, OutOfMemoryError; PeerLostError where another rank has masked this one: only
        close() is left. ProtocolError names a rank that makes another call or sends what no rank sends:
        ``mask(rank)`` and then :meth:`resume` go on without it.
        """
        deadline = Deadline(timeout)
        found: tuple[Any, Handle] = self._call(deadline, lambda: self._dispatch(x, topk_ids, topk_weights, deadline))
        return found

    def _dispatch(self, x: Any, topk_ids: Any, topk_weights: Any, deadline: Deadline) -> Any:
        shape = self._shape
        self._check_open("dispatch")
        if len(self._open) == SLOTS:
            raise InvalidArgumentError(f"dispatch: {SLOTS} dispatches are without their combine: combine or release one first")
        number, rows = self._number, self._rows_of(x)
        staged = list(zip(rows, self._fabric.stage(number, rows[0].count), strict=True))
        ids, weights = self._intake.take(topk_ids, topk_weights, staged, deadline)
        routes = _core.ExpertRoutes(self._fabric.layout, ids, weights)
        if rows[0].count != routes.tokens:
            raise InvalidArgumentError(f"x: {rows[0].count} rows; topk_ids has {routes.tokens}")
        local = len(shape.experts_of(self.rank))
        handle = Handle(self, number, routes, _core.ExpertReceived(self._fabric.layout), rows[0].like, local, shape.once)
        return self._run(Dispatch(self._fabric, handle, self._fabric.peers.living()), deadline)

    def _rows_of(self, x: Any) -> list[Rows]:
        shape = self._shape
        if shape.scaled != isinstance(x, tuple) or (shape.scaled and len(x) != 2):
            raise InvalidArgumentError(f"x: pass {'(x, scales)' if shape.scaled else 'one array'} to a Buffer of {shape.dtype}")
        parts = [("x", x, shape.dtype, shape.hidden)]
        if shape.scaled:
            parts = [("x", x[0], shape.dtype, shape.hidden), ("scales", x[1], "float32", shape.scale_bytes // 4)]
        rows = [Rows(what, array, dtype, columns, shape.tokens, self._fabric.counts) for what, array, dtype, columns in parts]
        if rows[-1].count != rows[0].count:
            raise InvalidArgumentError(f"scales: {rows[-1].count} rows; x has {rows[0].count}")
        return rows

    def results(self, handle: Handle, *, timeout: float | None = None) -> Any:
        """Memory for the experts' results: (rows of x2, hidden) of combine_dtype. combine() does not copy this array.

        Other ranks read it until the second dispatch after this one returns: do not write it after combine().
        Where x2 is a copy on a device, so is this, and combine() copies it back. For NumPy's x, bfloat16 is a type of ml_dtypes, or
        uint16 where that is not installed. Waits for a call of another thread. InvalidArgumentError, ClosedError, HmcTimeoutError.
        """
        return self._in_turn(Deadline(timeout), lambda: self._results(handle))

    def _results(self, handle: Handle) -> Any:
        self._check_handle("results", handle)
        shape = self._shape
        rows = self._fabric.results[handle._number % SLOTS].rows(handle._received.rows, shape.result_bytes)
        return handle._like.view(rows, shape.combine_dtype, shape.hidden)

    def combine(self, results: Any, handle: Handle, *, timeout: float | None = None) -> Any:
        """Returns y, (tokens, hidden) of combine_dtype: for each token the sum of its experts' results times ``topk_weights``.

        ``results``: (rows of x2, hidden) of combine_dtype, for each row of x2 the expert's result. With ``once``: for each row the
        sum over ``handle.experts`` of weight times result; y is the sum over the ranks, and ``topk_weights`` are not used again.

        Sums are in float32, in the order of the choices (with ``once``: of the ranks), whatever arrives first. Without ``once``
        equal results give equal bytes on any number of ranks, and on any device, but for the sign and payload of a NaN. Missing
        results count as 0; ``handle.lost`` names them. y is a new array like ``results``, on their device, for use on any stream.

        Of two handles the older one comes first. HmcTimeoutError names the ranks that have not called combine; :meth:`resume`
        continues. Errors as dispatch.
        """
        deadline = Deadline(timeout)
        return self._call(deadline, lambda: self._combine("combine", results, handle, deadline))

    def release(self, handle: Handle, *, timeout: float | None = None) -> None:
        """Ends a dispatch without results, instead of combine: this rank's results are missing everywhere. Errors as combine."""
        deadline = Deadline(timeout)
        self._call(deadline, lambda: self._combine("release", None, handle, deadline))

    def _combine(self, name: str, results: Any, handle: Handle, deadline: Deadline) -> Any:
        shape = self._shape
        self._check_handle(name, handle)
        if handle._number != min(self._open):
            raise InvalidArgumentError(f"{name}: dispatch {min(self._open)} is older than this one: combine or release it first")
        rows = None
        if name != "release":
            rows = Rows("results", results, shape.combine_dtype, shape.hidden, None, self._fabric.counts)
        if rows is not None and rows.count != handle._received.rows:
            raise InvalidArgumentError(f"results: {rows.count} rows; x2 has {handle._received.rows}")
        return self._run(Combine(self._fabric, handle, rows), deadline)

    def resume(self, *, timeout: float | None = None) -> Any:
        """Continues the call that raised HmcTimeoutError, ProtocolError or KeyboardInterrupt: its result, or its errors.

        Also one that raised OutOfMemoryError or DeviceError after it had begun. InvalidArgumentError: there is none. After those
        errors, a KeyboardInterrupt, or a stream that was behind: the call had not begun and may be repeated.
        """
        deadline = Deadline(timeout)
        return self._call(deadline, lambda: self._resume(deadline))

    def _resume(self, deadline: Deadline) -> Any:
        self._check_not_closed("resume")
        if self._undelivered:
            found, self._undelivered = self._undelivered, []
            return found[0]
        if self._pending is None:
            raise InvalidArgumentError("resume: no call has timed out")
        return self._run(self._pending, deadline)

    def mask(self, rank: int, *, timeout: float | None = None) -> None:
        """Continues without a rank that lives, such as one that is stopped. Its later calls raise PeerLostError.

        Mask a rank on every other rank: each one decides for itself. Waits for a call of another thread.
        InvalidArgumentError, ClosedError, PeerLostError, HmcTimeoutError.
        """
        self._in_turn(Deadline(timeout), lambda: self._mask(rank))

    def _mask(self, rank: int) -> None:
        self._check_not_closed("mask")
        rank = whole("mask: rank", rank, 0, self._shape.ranks - 1)
        if rank == self.rank:
            raise InvalidArgumentError(f"mask: rank {rank} is this one; pass another rank")
        if self._fabric.peers.is_alive(rank):
            self._fabric.drop(rank)
        if self._pending is not None:
            self._pending.forget(rank)  # also where an interrupt came before it in an earlier mask()

    def close(self, timeout: float | None = 5.0) -> None:
        """Leaves the group: for the other ranks this one is no longer alive. Not collective; Buffers are closed in any order.

        Waits until the other ranks have read this rank's results, then frees the memory; x2 and results that the program keeps
        stay. HmcTimeoutError: a rank has not called combine, or may still access the memory, whose pages HMC keeps; another
        close() continues. Idempotent.
        """
        deadline = Deadline(timeout)
        self._in_turn(deadline, lambda: self._close(deadline))

    def _close(self, deadline: Deadline) -> None:
        if not self._closed:
            self._leave(deadline)
            with contextlib.suppress(DeviceError):  # of the caller's stream
                self._intake.drain(deadline, "close() again waits on")
            if self._pending is not None:
                self._pending.drain(deadline)
                self._pending = None
            self._fabric.close(deadline)
            self._closed = True
        self._undelivered = []
        self._fabric.free()

    def _leave(self, deadline: Deadline) -> None:
        peers = self._fabric.peers
        self._closing = True
        if self._pending is not None:
            self._pending.withdraw()
        self._open.clear()
        for rank in peers.living():
            peers.release(rank, READ)
        late = [rank for rank in peers.living() if not self._have_read(rank, deadline)]
        if late:
            raise HmcTimeoutError(f"close: {names(late)} had not read this rank's results at the deadline: close() again waits on")
        for rank in peers.living():
            self._fabric.say(rank, CLOSED)

    def _have_read(self, rank: int, deadline: Deadline) -> bool:
        peers = self._fabric.peers
        with contextlib.suppress(ClosedError):  # the Communicator was closed first
            count, _ = peers.served[rank]
            if rank != peers.rank and count and not (self._failure or self._refused):
                return peers.wait(rank, READ, deadline, self._read_by.setdefault(rank, []), count) is not Outcome.LATE
        return True

    # ---- inside ----

    def _run(self, call: Call, deadline: Deadline) -> Any:
        self._pending, self._undelivered = call, []
        if isinstance(call, Dispatch):
            self._open[call.number] = call.handle
            self._number = call.number + 1
        self._refused = False
        try:
            found = call.run(deadline)
        except PeerLostError as error:
            self._failure = str(error)
            raise
        except ProtocolError as error:
            self._refused = True
            raise ProtocolError(f"{error}; or mask(rank) and then resume() to go on without the rank") from error
        if isinstance(call, Combine):
            self._open.pop(call.number, None)
        self._pending = None
        return found

    def _call(self, deadline: Deadline, work: Callable[[], Any]) -> Any:
        """Keeps a result that an interrupt has taken away from the caller, for resume()."""
        found: list[Any] = []
        try:
            self._in_turn(deadline, lambda: found.append(work()))
            return found[0]
        except BaseException:
            if found:  # else that of an earlier call stays
                self._undelivered = found
            raise

    def _in_turn(self, deadline: Deadline, work: Callable[[], Any]) -> Any:
        """One thread at a time. An interrupt at any moment leaves the lock free, which a context manager in Python does not."""
        self._check_process()  # before anything is written that the other ranks read
        me = threading.get_ident()
        if me in self._callers:
            raise InvalidArgumentError(
                "experts.Buffer: called inside another call of this thread, as by a signal handler: raise there, then call"
            )
        held: list[bool] = []
        try:
            self._callers.add(me)
            if not take(self._lock, deadline.left(), held):
                raise HmcTimeoutError("experts.Buffer: another thread's call was still running at the deadline")
            return work()
        finally:
            try:
                if held == [True]:
                    self._lock.release()
            finally:
                self._callers.discard(me)

    def _check_not_closed(self, what: str) -> None:
        if self._closing:
            raise ClosedError(f"{what}: the Buffer is closed")
        if self._failure:
            raise PeerLostError(f"{what}: {self._failure}")

    def _check_open(self, what: str) -> None:
        self._check_not_closed(what)
        if self._pending is not None:
            raise InvalidArgumentError(f"{what}: a {self._pending.name} has not ended: resume() it first")

    def _check_handle(self, what: str, handle: Any) -> None:
        self._check_open(what)
        if not isinstance(handle, Handle) or handle._owner is not self:
            raise InvalidArgumentError(f"{what}: {handle!r} is no handle of this Buffer's dispatch")
        if handle._state is not State.OPEN or handle._number not in self._open:  # the latter: of a copy of the Handle
            raise InvalidArgumentError(f"{what}: {handle!r} has had its combine or release")

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        shape, peers = self._shape, self._fabric.peers
        with contextlib.suppress(ClosedError):  # a child of fork() shows what its parent had found out
            peers.alive()
        alive = len(peers.alive_of(range(shape.ranks)))
        return (
            f"<hmc.experts.Buffer rank {self.rank}, {alive} of {shape.ranks} ranks, {shape.experts} experts, {shape.dtype}"
            f"[{shape.tokens}, {shape.hidden}]{', closed' if self._closed else ''}>"
        )
