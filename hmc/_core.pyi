"""
HMC's C++ core. Use the package `hmc`; this module's layout is not part of the API.
"""

from __future__ import annotations
import collections.abc
import os
import typing
import numpy
import numpy.typing

class StreamMark:
    """
    What is queued on a stream when this is made, and no later work. stream: int, framework stream or __cuda_stream__. device: whose it is; a framework's stream says so itself. Any thread.
    """
    def __init__(self, stream: typing.Any, device: typing.Any = None) -> None: ...
    @staticmethod
    def of(array: typing.Any) -> StreamMark | None:
        """
        Of the stream that an array of a device is produced on (torch's or CuPy's current one, or what its __cuda_array_interface__ names); None where nothing says so, and for CPU memory.
        """
    @property
    def reached(self) -> bool:
        """
        True once that work is over.
        """

class Memory:
    """
    Bytes on one device. Memory(nbytes, device="cpu") allocates (zero-filled on the CPU); slices and exported views share the bytes and keep them alive. Any thread; concurrent access to the same bytes is the caller's to order.
    """
    @staticmethod
    def from_array(array: typing.Any) -> Memory:
        """
        The memory of an array, in place; keeps the array alive.
        """
    def __dlpack__(
        self, *, stream: typing.Any = None, max_version: typing.Any = None, dl_device: typing.Any = None, copy: typing.Any = None
    ) -> typing.Any:
        """
        The bytes as a one-dimensional uint8 DLPack tensor that shares ownership of the memory. Read-only memory: BufferError for a consumer from before DLPack 1, which has no sign for it.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        """
        DLPack device type and number.
        """
    def __getitem__(self, index: typing.Any) -> Memory:
        """
        A view of bytes [start:stop]; no copy. InvalidArgumentError when out of range.
        """
    def __init__(
        self,
        nbytes: typing.SupportsIndex,
        device: typing.Any = "cpu",
        *,
        huge_pages: bool = False,
        pinned: bool = False,
        alignment: typing.SupportsIndex = 4096,
    ) -> None:
        """
        Allocates nbytes (may be 0). huge_pages: asked for, not insisted on. pinned: locked, or OutOfMemoryError naming the limit. alignment: bytes, a power of two up to 2 MiB.
        """
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def copy_blocks_from(
        self, source: Memory, source_offsets: typing.Any, target_offsets: typing.Any, nbytes: typing.SupportsIndex
    ) -> None:
        """
        Copies blocks of nbytes bytes from source_offsets[i] of source (a Memory on any device) to target_offsets[i] here. Blocks written do not overlap. Beside a device, CPU memory that HMC allocated is pinned at the first such copy. Returns when all are there.
        """
    def copy_from(self, source: typing.Any) -> None:
        """
        Copies every byte of source (Memory or array, any device) here. Sizes must be equal. Blocks.
        """
    def copy_to(self, target: typing.Any) -> None:
        """
        Copies every byte to target (Memory or writable array, any device). Sizes must be equal. Blocks.
        """
    def fill(self, value: typing.SupportsIndex) -> None:
        """
        Sets every byte.
        """
    def numpy(self, dtype: typing.Any = None, shape: typing.Any = None) -> typing.Any:
        """
        The bytes as a NumPy array, without a copy. dtype: default uint8; shape: default one dimension. The array keeps the memory alive, and is read-only where the memory was registered or wrapped from a read-only array. CPU memory only (BufferError otherwise).
        """
    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]:
        """
        The bytes as one-dimensional uint8, version 3 of the protocol; ready, so no stream. Whoever uses it keeps this object. AttributeError where the protocol is not the custom: CPU memory and some vendors'.
        """
    @property
    def address(self) -> int:
        """
        Where the bytes begin, in the address space of their device; 0 where there are none.
        """
    @property
    def device(self) -> str:
        """
        Device name, such as "cpu".
        """
    @property
    def nbytes(self) -> int:
        """
        Size in bytes.
        """
    @property
    def shareable(self) -> bool:
        """
        True when peers on the host can map it: HMC allocated it.
        """

class Descriptor:
    """
    What a ConnBuffer gives away: names it, grants nothing by itself. bytes(d) serialises it.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @staticmethod
    def parse(data: bytes) -> Descriptor:
        """
        The descriptor of these bytes. ProtocolError for anything else.
        """
    def __bytes__(self) -> bytes: ...
    @property
    def device(self) -> str:
        """
        Device name at its owner.
        """
    @property
    def generation(self) -> int:
        """
        Differs for each registration.
        """
    @property
    def nbytes(self) -> int:
        """
        Size of the buffer in bytes.
        """

class ConnBuffer:
    """
    Registered memory that peers may read (access "r") or read and write ("rw"). Slices are ConnBuffers too. The end of the last of them closes it, without waiting.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __dlpack__(
        self, *, stream: typing.Any = None, max_version: typing.Any = None, dl_device: typing.Any = None, copy: typing.Any = None
    ) -> typing.Any:
        """
        The bytes as a one-dimensional uint8 DLPack tensor that shares ownership of the memory. Read-only memory: BufferError for a consumer from before DLPack 1, which has no sign for it.
        """
    def __dlpack_device__(self) -> tuple[int, int]:
        """
        DLPack device type and number.
        """
    def __enter__(self) -> ConnBuffer: ...
    def __exit__(self, *args: typing.Any) -> None: ...
    def __getitem__(self, index: typing.Any) -> ConnBuffer:
        """
        A view of bytes [start:stop]; no copy. InvalidArgumentError when out of range.
        """
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def close(self, timeout: float | None = None) -> None:
        """
        Ends the registration: returns when every importer has acknowledged or died and every receive into the memory that has its message has ended; nothing lands afterwards. A receive without a message stays posted and is not waited for. HmcTimeoutError: the memory may still be written; HMC keeps its pages until then. Idempotent.
        """
    def descriptor(self) -> Descriptor:
        """
        Names the whole registration for a peer's import_buffer(). ClosedError once closed.
        """
    def native(self, transport: str) -> list[dict[str, int | str]]:
        """
        What programs that are not HMC need to reach these bytes through a transport's own interface, such as "verbs": one dict for each port, whose fields docs/reference/native.md lists. Valid until close(). UnsupportedError: it has none, or is not there.
        """
    def numpy(self, dtype: typing.Any = None, shape: typing.Any = None) -> typing.Any:
        """
        The bytes as a NumPy array, without a copy. dtype: default uint8; shape: default one dimension. The array keeps the memory alive, and is read-only where the memory was registered or wrapped from a read-only array. CPU memory only (BufferError otherwise).
        """
    @property
    def __cuda_array_interface__(self) -> dict[str, typing.Any]:
        """
        The bytes as one-dimensional uint8, version 3 of the protocol; ready, so no stream. Whoever uses it keeps this object. AttributeError where the protocol is not the custom: CPU memory and some vendors'.
        """
    @property
    def access(self) -> str:
        """
        "r" or "rw".
        """
    @property
    def closed(self) -> bool:
        """
        True once close() was called.
        """
    @property
    def device(self) -> str:
        """
        Device name, such as "cpu".
        """
    @property
    def memory(self) -> Memory:
        """
        This slice's Memory.
        """
    @property
    def nbytes(self) -> int:
        """
        Size in bytes.
        """
    @property
    def offset(self) -> int:
        """
        Of this slice in the registration, bytes.
        """

class NativeConnection:
    """
    A connection from a program that is not HMC; made by Context.connect_native(). Its end closes it.
    """
    def __enter__(self) -> NativeConnection: ...
    def __exit__(self, *args: typing.Any) -> None: ...
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def close(self) -> None:
        """
        Nothing comes in through it afterwards. Idempotent.
        """
    @property
    def fields(self) -> dict[str, int | str]:
        """
        What the other program needs to connect its end.
        """

class RemoteBuffer:
    """
    A peer's ConnBuffer as imported here. Slices are RemoteBuffers too.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __getitem__(self, index: typing.Any) -> RemoteBuffer:
        """
        A view of bytes [start:stop]; no copy. InvalidArgumentError when out of range.
        """
    def __len__(self) -> int: ...
    def __repr__(self) -> str: ...
    def loadable(self, device: typing.Any = None) -> numpy.typing.NDArray[numpy.uint8] | Memory | None:
        """
        This slice without a copy, as a read-only NumPy array of uint8, or for a ``device`` as a read-only Memory; or None.

        For CPU memory that HMC allocated in this process, or has mapped from another one of the host, and for memory of a device that ``device``, one of this process such as "cuda:0", has used in an operation. It may be None at one call and not at the next: keep get() as the other way. The array or Memory remains valid when the owner closes the buffer or dies. No close() waits for those who read it outside of a BufferHold, no counter counts that, and the owner may write meanwhile: synchronise with it by messages or notifications.
        """
    def storable(self, device: typing.Any = None) -> numpy.typing.NDArray[numpy.uint8] | Memory | None:
        """
        The same as a writable array or Memory, where its owner registered it with access "rw"; else None.

        Write within a BufferHold only, for milliseconds at a time: no close() of the owner waits for other writes, which then land in memory that it may have freed.
        """
    @property
    def access(self) -> str:
        """
        "r" or "rw".
        """
    @property
    def alive(self) -> bool:
        """
        False once its owner closed it or died.
        """
    @property
    def device(self) -> str:
        """
        Device name, such as "cpu".
        """
    @property
    def nbytes(self) -> int:
        """
        Size in bytes.
        """
    @property
    def offset(self) -> int:
        """
        Of this slice in the registration, bytes.
        """

@typing.final
class MessageInfo(tuple[int, int, int]):
    """What a receive delivered: source, tag, bytes."""

    n_fields: typing.Final = 3
    n_sequence_fields: typing.Final = 3
    n_unnamed_fields: typing.Final = 0
    __match_args__: typing.Final = ("source", "tag", "bytes")
    @property
    def source(self) -> int: ...
    @property
    def tag(self) -> int: ...
    @property
    def bytes(self) -> int: ...

class BufferHold:
    """
    In its ``with`` block this process's own code reads or writes buffers, without an operation: close() of them, of their Context, and of the remote ones at their owners, waits for its end. ClosedError, StaleBufferError, PeerLostError: one of them is closed or lost. InvalidArgumentError: of several Contexts. One thread.
    """
    def __enter__(self) -> BufferHold: ...
    def __exit__(self, *args: typing.Any) -> None: ...
    def __init__(self, local: collections.abc.Sequence[ConnBuffer], remote: collections.abc.Sequence[RemoteBuffer]) -> None: ...

class BlockBatch:
    """
    Scattered blocks over buffer pairs, validated once, posted as often as wanted.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    @property
    def blocks(self) -> int:
        """
        Number of blocks.
        """
    @property
    def nbytes(self) -> int:
        """
        Bytes in all.
        """

class Layout:
    """
    Where the elements of a paged KV cache lie: named axes from the outermost to the innermost, as in "L=32 B=1024 H=8 N=16 (kv D=128) bf16". Arguments give what the text leaves out: extents, first layer and head, element type, scales. InvalidArgumentError names the part of the text that is unknown, missing or ambiguous. Immutable.
    """
    def __init__(
        self,
        text: str,
        *,
        L: typing.SupportsInt = 0,
        B: typing.SupportsInt = 0,
        N: typing.SupportsInt = 0,
        H: typing.SupportsInt = 0,
        D: typing.SupportsInt = 0,
        first_layer: typing.SupportsInt = 0,
        first_head: typing.SupportsInt = 0,
        dtype: typing.Any = None,
        scales: collections.abc.Sequence[typing.SupportsFloat] = [],
    ) -> None: ...
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    def packed(
        self,
        layers: tuple[typing.SupportsInt, typing.SupportsInt],
        heads: tuple[typing.SupportsInt, typing.SupportsInt],
        blocks: typing.SupportsInt,
    ) -> Layout:
        """
        The same order of axes, compact and in one buffer, for these (first, count) of layers and heads, and blocks.
        """
    @property
    def block(self) -> int:
        """
        Tokens of a block.
        """
    @property
    def blocks(self) -> int:
        """
        Number of blocks.
        """
    @property
    def buffer_bytes(self) -> int:
        """
        Bytes that each buffer has at least.
        """
    @property
    def buffers(self) -> int:
        """
        Number of buffers.
        """
    @property
    def dims(self) -> int:
        """
        Dimensions of a head.
        """
    @property
    def dtype(self) -> str:
        """
        As "bf16".
        """
    @property
    def heads(self) -> tuple[int, int]:
        """
        (first, count) in the whole model.
        """
    @property
    def kv(self) -> int:
        """
        2, or 1 without a kv axis.
        """
    @property
    def layers(self) -> tuple[int, int]:
        """
        (first, count) in the whole model.
        """
    @property
    def scales(self) -> list[float]:
        """
        A pair for each layer, of K and V.
        """

class Work:
    """
    One operation under way: wait for it, await it, or be called back. Completes exactly once by itself; dropping it does not cancel it. Any thread.
    """
    def wait(self, timeout: float | None = None) -> None:
        """
        Waits until done; raises the operation's error, or HmcTimeoutError after `timeout` seconds (the operation goes on).
        """
    def __await__(self) -> collections.abc.Generator[typing.Any, None, MessageInfo]: ...
    def add_done_callback(self, callback: typing.Any) -> None:
        """
        Calls callback(work) once after completion, on the dispatcher thread; never inside this call.
        """
    def _withdraw(self) -> bool:
        """
        As cancel(); a wait that is complete also returns what it consumed. False: too late to stop, it completes by itself.
        """
    def cancel(self) -> None:
        """
        Stops the operation: afterwards nothing of it is written. A receive leaves its message to the next receive that fits; where the sender writes, this waits up to a second for it to stop. UnsupportedError when it is too late (it completes by itself, also as cancelled), InvalidArgumentError when it is complete.
        """
    def join(self, stream: typing.Any, device: typing.Any = None) -> None:
        """
        Makes a device's stream wait until the operation is complete, with whatever outcome; returns at once, but for a group's first collectives of device memory. stream: int, framework stream or __cuda_stream__. device: whose it is; a framework's stream says so itself.
        """
    def error(self) -> Exception | None:
        """
        The exception of a failed operation, else None (also while under way).
        """
    @property
    def done(self) -> bool:
        """
        True once complete.
        """
    @property
    def info(self) -> MessageInfo:
        """
        MessageInfo of a completed receive.
        """

class _PeerWork(Work):
    """
    A Work that delivers a value.
    """
    def _take(self) -> Peer: ...

class _RemoteBufferWork(Work):
    """
    A Work that delivers a value.
    """
    def _take(self) -> RemoteBuffer: ...

class _NotificationsWork(Work):
    """
    A wait for notifications.
    """
    def _take(self) -> list[tuple[int, bytes]]: ...

class CompletionQueue:
    """
    Completed Works as readiness of one descriptor; what awaiting is made of.
    """
    def __init__(self) -> None: ...
    def drain(self) -> list[int]:
        """
        Takes every queued token.
        """
    def fileno(self) -> int:
        """
        Readable while completed tokens wait.
        """
    def watch(self, work: Work, token: typing.SupportsIndex) -> None:
        """
        Queues token once when work completes. In a forked child, ClosedError for a Work of the parent's.
        """

class Path:
    """
    The route between a local and a remote device, and why. A snapshot: ask again for current counters.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    @property
    def bandwidth(self) -> float:
        """
        Expected bandwidth of a large message, bytes per second.
        """
    @property
    def bytes_got(self) -> int:
        """
        Bytes got on this path by this side so far.
        """
    @property
    def bytes_put(self) -> int:
        """
        Bytes put on this path from this side so far.
        """
    @property
    def bytes_staged(self) -> int:
        """
        Bytes copied through a stage so far.
        """
    @property
    def detail(self) -> str:
        """
        How the transport moves the bytes.
        """
    @property
    def direct(self) -> bool:
        """
        True when nothing is copied through a stage.
        """
    @property
    def encrypted(self) -> bool:
        """
        True when the payload is encrypted on the wire.
        """
    @property
    def hardware_bandwidth(self) -> float:
        """
        What the hardware between the two could carry as far as it is known, bytes per second; 0: not known.
        """
    @property
    def latency_us(self) -> float:
        """
        Expected one-way latency of a small message, microseconds.
        """
    @property
    def messages(self) -> str:
        """
        Name of the transport that messages (send, recv, all-to-all) take where it is another one; else empty.
        """
    @property
    def reason(self) -> str:
        """
        Why this path was chosen.
        """
    @property
    def rejected(self) -> list[str]:
        """
        The other candidates, each with its reason.
        """
    @property
    def runner_up(self) -> str:
        """
        Name of the transport that takes over if this one fails; empty: none.
        """
    @property
    def source(self) -> str:
        """
        Device here.
        """
    @property
    def target(self) -> str:
        """
        Device at the peer.
        """
    @property
    def transport(self) -> str:
        """
        Name of the transport: "local", "shm", "tcp", ...
        """

class PageMove:
    """
    The pages of some tokens, between a cache of this process and one of a peer. `source`, `target`: (Layout, blocks, first token within them) each. `near`: this process's buffers, `far`: the peer's, as many as their layouts have. `reading`: from the peer's cache to this process's. One thread at a time.
    """
    def __init__(
        self,
        peer: Peer,
        source: tuple[Layout, typing.Any, int],
        target: tuple[Layout, typing.Any, int],
        tokens: typing.SupportsInt,
        near: collections.abc.Sequence[ConnBuffer],
        far: collections.abc.Sequence[RemoteBuffer],
        *,
        reading: bool,
    ) -> None: ...
    def post(
        self, works: list[Work], layers: tuple[typing.SupportsInt, typing.SupportsInt], shortest: typing.SupportsInt = 0
    ) -> int | None:
        """
        Begins to move layers, (first, count) of the whole model, and appends the Works to `works`; also before it raises. Returns how many bytes they move. None: nothing was begun, as elements or scales differ, or as runs have fewer than `shortest` bytes on average.
        """
    @property
    def layer_bytes(self) -> int:
        """
        Of one layer of `tokens` tokens in this process's cache.
        """

class Peer:
    """
    One connected remote Context. Any thread. Every call on a lost peer raises PeerLostError.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def get(self, target: ConnBuffer, source: RemoteBuffer, stream: typing.Any = None) -> Work:
        """
        Reads a RemoteBuffer slice into a ConnBuffer slice of equal size; returns a Work. stream: of the target's device, as in put.
        """
    def irecv(self, array: typing.Any, tag: int = 0, stream: typing.Any = None) -> Work:
        """
        As recv, but returns a Work at once; work.info tells what came. stream: as in isend.
        """
    def isend(self, array: typing.Any, tag: int = 0, stream: typing.Any = None) -> Work:
        """
        As send, but returns a Work at once. stream: of the array's device; the transfer starts after what is queued on it (default: the stream that a framework's array is produced on).
        """
    def put(
        self,
        source: ConnBuffer,
        target: RemoteBuffer,
        notify: int | bytes | None = None,
        complete: str = "remote",
        stream: typing.Any = None,
    ) -> Work:
        """
        Writes a ConnBuffer slice into a RemoteBuffer slice of equal size; returns a Work. notify: an int (counted) or bytes (at most 1024), raised at the target once the bytes are visible there. complete: "remote" or "local". stream: of the source's device (int, framework stream, __cuda_stream__); the transfer starts after what is queued on it.
        """
    def recv(self, array: typing.Any, tag: int = 0, timeout: float | None = None) -> MessageInfo:
        """
        Receives into a writable contiguous array; returns MessageInfo(source, tag, bytes). tag may be ANY_TAG. A message longer than the array raises InvalidArgumentError; a shorter one is fine. A timeout withdraws the receive; the message says whether the array may have been written.
        """
    def send(self, array: typing.Any, tag: int = 0, timeout: float | None = None) -> None:
        """
        Sends an array's bytes; returns when it may be reused. tag: 0 to 2**62.
        """
    def wait_notify(self, id: int, count: int = 1, timeout: float | None = None) -> None:
        """
        Waits until notification `id` was raised `count` times and consumes them. HmcTimeoutError consumes nothing.
        """
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...
    def close(self) -> None:
        """
        Closes without waiting: what was posted arrives, what the peer posted ends, then both sides say bye. Messages and receives without a match end with ClosedError.
        """
    def fence(self) -> None:
        """
        What is posted afterwards becomes visible only after everything posted before.
        """
    def get_blocks(self, batch: BlockBatch, stream: typing.Any = None) -> Work:
        """
        Gets every block. stream: as in get.
        """
    def import_buffer(self, descriptor: Descriptor, timeout: float | None = 30.0) -> RemoteBuffer:
        """
        Imports a buffer by descriptor. StaleBufferError, AuthenticationError (forged), InvalidArgumentError (of another Context).
        """
    async def import_buffer_async(self, descriptor: Descriptor, timeout: float | None = 30.0) -> RemoteBuffer:
        """
        As import_buffer(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    def _iimport(self, descriptor: Descriptor, timeout: float | None) -> _RemoteBufferWork: ...
    def _ilookup(self, name: str, timeout: float | None) -> _RemoteBufferWork: ...
    def _inotifications(self, timeout: float | None) -> _NotificationsWork: ...
    def _inotify(self, notify: typing.Any, timeout: float | None) -> Work: ...
    def _iwait_notify(self, id: typing.Any, count: typing.Any, timeout: float | None) -> Work: ...
    def lookup(self, name: str, timeout: float | None = None) -> RemoteBuffer:
        """
        Imports the buffer published under name; waits for it to appear.
        """
    async def lookup_async(self, name: str, timeout: float | None = None) -> RemoteBuffer:
        """
        As lookup(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    def notifications(self, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
        """
        Payload notifications as (source, bytes) in arrival order; waits up to timeout for the first.
        """
    async def notifications_async(self, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
        """
        As notifications(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    def notify(self, notify: typing.Any, timeout: float | None = None) -> None:
        """
        Raises a notification without data: an int (counted) or bytes. Returns once it is queued; waits while thousands before it are not accepted by a peer that is stopped or does not read. HmcTimeoutError: nothing was sent.
        """
    async def notify_async(self, notify: typing.Any, timeout: float | None = None) -> None:
        """
        As notify(), as a coroutine that takes no thread. Cancelling takes effect at once: the notification was raised, or is not sent.
        """
    def path(self, source: typing.Any = "cpu", target: typing.Any = "cpu", timeout: float | None = 30.0) -> Path:
        """
        The Path between a device here and one at the peer; connects if need be.
        """
    def prepare_blocks(self, pairs: collections.abc.Iterable[typing.Any], block: typing.SupportsIndex) -> BlockBatch:
        """
        Checks scattered blocks of `block` bytes: pairs of (local buffer, offsets, remote buffer, offsets), offsets as integer arrays.
        """
    def put_blocks(self, batch: BlockBatch, notify: typing.Any = None, complete: str = "remote", stream: typing.Any = None) -> Work:
        """
        Puts every block; one notification covers all. stream: as in put.
        """
    async def wait_notify_async(self, id: int, count: int = 1, timeout: float | None = None) -> None:
        """
        As wait_notify(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    @property
    def address(self) -> str:
        """
        Where it is connected.
        """
    @property
    def alive(self) -> bool:
        """
        False once it was lost or closed.
        """
    @property
    def epoch(self) -> int:
        """
        Differs each time the same address comes back.
        """
    @property
    def name(self) -> str:
        """
        What the peer calls itself.
        """
    @property
    def gone(self) -> bool:
        """
        True when nothing of the peer can read or write memory of this process any more: it was lost or closed, and its process has let go of the memory, or is dead.
        """
    @property
    def same_host(self) -> bool:
        """
        True when a descriptor could be passed.
        """

class Context:
    """
    What this process is on the fabric: its transports, listener and peers, without ranks. Use it as a context manager. Keyword arguments, all optional: listen (address or list: "unix:/path", "tcp://host:port"; a private Unix socket is always there), key (job key; default HMC_JOB_KEY), insecure (allow TCP beyond this host without a key), name, transports (as HMC_TRANSPORTS), policy ("auto" or "direct"), heartbeat (seconds, default 5), progress ("background" or "manual"), on_joined(peer), on_left(peer, error or None). Any thread; dead in a forked child.
    """
    def __enter__(self) -> Context: ...
    def __exit__(self, *args: typing.Any) -> None: ...
    def __init__(self, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    def _iaccept(self, timeout: float | None) -> _PeerWork: ...
    def _iconnect(self, address: str, timeout: float | None) -> _PeerWork: ...
    def accept(self, timeout: float | None = None) -> Peer:
        """
        The next peer that connected and has not been accepted yet.
        """
    async def accept_async(self, timeout: float | None = None) -> Peer:
        """
        As accept(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    def buffer(self, nbytes: typing.SupportsIndex, device: typing.Any = "cpu", access: str = "rw") -> ConnBuffer:
        """
        Allocates and registers zero-filled memory.
        """
    def close(self, timeout: float | None = 5.0) -> None:
        """
        Closes every peer, waits until what was posted has arrived, and frees everything. Messages and receives without a match end with ClosedError. HmcTimeoutError: something may be lost, or a stopped process may still write memory of this one; call it again to go on waiting. Idempotent.
        """
    def connect(self, address: str, timeout: float | None = 30.0) -> Peer:
        """
        Connects to a listening Context. AuthenticationError, HmcTimeoutError, PeerLostError (refused), ProtocolError (another version).
        """
    async def connect_async(self, address: str, timeout: float | None = 30.0) -> Peer:
        """
        As connect(), as a coroutine that takes no thread. Cancelling takes effect at once; a connection that was made already is kept in peers.
        """
    def connect_native(self, transport: str, peer: collections.abc.Mapping[str, int | str]) -> NativeConnection:
        """
        Connects a program that is not HMC, whose own end the fields of `peer` describe, so that it can use what ConnBuffer.native() says; docs/reference/native.md lists the fields. UnsupportedError: the transport has no such interface, or is not there.
        """
    def counters(self) -> dict[str, int]:
        """
        Counters by name since creation.
        """
    def progress(self) -> bool:
        """
        progress="manual": polls once; True if something moved.
        """
    def publish(self, name: str, buffer: ConnBuffer) -> None:
        """
        Publishes a buffer for lookup(). InvalidArgumentError when the name is taken.
        """
    def register(self, array: typing.Any, access: str = "rw") -> ConnBuffer:
        """
        Registers an array or Memory in place; keeps it alive. A read-only array needs access="r".
        """
    def unpublish(self, name: str) -> None:
        """
        Takes a published name back.
        """
    @property
    def addresses(self) -> list[str]:
        """
        What peers pass to connect(), with real ports.
        """
    @property
    def closed(self) -> bool:
        """
        True after close().
        """
    @property
    def id(self) -> str:
        """
        32 hexadecimal digits, random.
        """
    @property
    def name(self) -> str:
        """
        What peers see.
        """
    @property
    def peers(self) -> list[Peer]:
        """
        Peers connected now.
        """

class Member:
    """
    A card (or the CPU) in a Communicator: every rank-addressed call. Any thread; collectives in the same order everywhere.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def get(self, target: ConnBuffer, source: RemoteBuffer, stream: typing.Any = None) -> Work:
        """
        Reads a RemoteBuffer slice into a ConnBuffer slice of equal size; returns a Work. stream: of the target's device, as in put.
        """
    def irecv(self, array: typing.Any, src: int, tag: int = 0, stream: typing.Any = None) -> Work:
        """
        As recv, but returns a Work at once; work.info tells what came. stream: as in isend.
        """
    def isend(self, array: typing.Any, dst: int, tag: int = 0, stream: typing.Any = None) -> Work:
        """
        As send, but returns a Work at once. stream: of the array's device; the transfer starts after what is queued on it (default: the stream that a framework's array is produced on).
        """
    def put(
        self,
        source: ConnBuffer,
        target: RemoteBuffer,
        notify: int | bytes | None = None,
        complete: str = "remote",
        stream: typing.Any = None,
    ) -> Work:
        """
        Writes a ConnBuffer slice into a RemoteBuffer slice of equal size; returns a Work. notify: an int (counted) or bytes (at most 1024), raised at the target once the bytes are visible there. complete: "remote" or "local". stream: of the source's device (int, framework stream, __cuda_stream__); the transfer starts after what is queued on it.
        """
    def recv(self, array: typing.Any, src: int, tag: int = 0, timeout: float | None = None) -> MessageInfo:
        """
        Receives into a writable contiguous array; returns MessageInfo(source, tag, bytes). tag may be ANY_TAG, src ANY_SOURCE. A message longer than the array raises InvalidArgumentError; a shorter one is fine. A timeout withdraws the receive; the message says whether the array may have been written.
        """
    def send(self, array: typing.Any, dst: int, tag: int = 0, timeout: float | None = None) -> None:
        """
        Sends an array's bytes; returns when it may be reused. tag: 0 to 2**62.
        """
    def wait_notify(self, src: int, id: int, count: int = 1, timeout: float | None = None) -> None:
        """
        Waits until notification `id` was raised `count` times and consumes them. HmcTimeoutError consumes nothing.
        """
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __hash__(self) -> int: ...
    def __repr__(self) -> str: ...
    def abort(self, reason: str = "") -> None:
        """
        Ends every collective of the Communicator on every rank, those in flight and all later ones, with HmcCancelledError, which has this rank and the reason (at most 1 KiB of it on other ranks). Does not wait. Any thread, also while another one waits in a collective. Point-to-point goes on.
        """
    def all_reduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        timeout: float | None = None,
        exact: bool = False,
        algorithm: str | None = None,
    ) -> None:
        """
        Reduces inp of every rank into out of every rank; without inp, out in place. op: sum, product, min, max, avg, band, bor, bxor, or premul_sum, which multiplies by factor before (alike on every rank). Every rank gets the same bits. exact: of sum, avg and premul_sum; each sum is rounded once, so it does not depend on the order of the ranks. algorithm: one of plan().algorithms, alike on every rank; None: HMC chooses. dtype: for arrays without one. Several local Members: {member: (out, inp)} or {member: array}. Collective.
        """
    def iall_reduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        exact: bool = False,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As all_reduce of arrays, but returns a Work at once. stream: of the arrays' device; the call starts after what is queued on it, and what is queued there later waits for the call, with whatever outcome (default: it starts after the stream that a framework's arrays are produced on, and Work.join orders what comes later).
        """
    def reduce_scatter(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        op: str = "sum",
        counts: typing.Any = None,
        factor: typing.Any = None,
        dtype: typing.Any = None,
        timeout: float | None = None,
        exact: bool = False,
        algorithm: str | None = None,
    ) -> None:
        """
        Reduces block r of every rank's inp into out of rank r. counts: elements of each rank's block; default: equal blocks. op, factor, dtype, exact, algorithm: as all_reduce. Several local Members: {member: (out, inp)}. Collective.
        """
    def ireduce_scatter(
        self,
        out: typing.Any,
        inp: typing.Any,
        op: str = "sum",
        counts: typing.Any = None,
        factor: typing.Any = None,
        dtype: typing.Any = None,
        exact: bool = False,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As reduce_scatter of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def reduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        timeout: float | None = None,
        exact: bool = False,
        algorithm: str | None = None,
    ) -> None:
        """
        Reduces inp of every rank into out of root; other ranks may pass None as out. op, factor, dtype, exact, algorithm: as all_reduce. Several local Members: {member: (out, inp)}. Collective.
        """
    def ireduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        exact: bool = False,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As reduce of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def all_gather(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> None:
        """
        inp of rank r becomes block r of out of every rank; inp may be that block. counts, displacements: elements of the blocks of out; default: equal blocks, packed. algorithm: as all_reduce. Several local Members: {member: (out, inp)}. Collective.
        """
    def iall_gather(
        self,
        out: typing.Any,
        inp: typing.Any,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As all_gather of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def broadcast(
        self, array: typing.Any, root: typing.SupportsInt = 0, timeout: float | None = None, algorithm: str | None = None
    ) -> None:
        """
        array of root becomes array of every rank. algorithm: as all_reduce. Several local Members: {member: array}. Collective.
        """
    def ibroadcast(
        self, array: typing.Any, root: typing.SupportsInt = 0, algorithm: str | None = None, stream: typing.Any = None
    ) -> Work:
        """
        As broadcast of an array, but returns a Work at once. stream: as in iall_reduce.
        """
    def gather(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        timeout: float | None = None,
    ) -> None:
        """
        inp of rank r becomes block r of out of root; other ranks may pass None as out. counts, displacements: elements of the blocks of out; default: equal blocks, packed. Several local Members: {member: (out, inp)}. Collective.
        """
    def igather(self, out: typing.Any, inp: typing.Any, root: typing.SupportsInt = 0, stream: typing.Any = None) -> Work:
        """
        As gather of equal blocks, but returns a Work at once. stream: as in iall_reduce.
        """
    def scatter(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        timeout: float | None = None,
    ) -> None:
        """
        Block r of inp of root becomes out of rank r; other ranks may leave inp out. counts, displacements: elements of the blocks of inp; default: equal blocks, packed. Several local Members: {member: (out, inp)}. Collective.
        """
    def iscatter(self, out: typing.Any, inp: typing.Any = None, root: typing.SupportsInt = 0, stream: typing.Any = None) -> Work:
        """
        As scatter of equal blocks, but returns a Work at once. stream: as in iall_reduce.
        """
    def all_to_all(self, out: typing.Any, inp: typing.Any, timeout: float | None = None, algorithm: str | None = None) -> None:
        """
        Block r of inp goes to rank r, block r of out comes from it. algorithm: one of plan().algorithms, alike on every rank; None: HMC chooses. Collective.
        """
    def all_to_all_v(
        self,
        out: typing.Any,
        out_counts: typing.Any,
        inp: typing.Any,
        in_counts: typing.Any,
        out_displacements: typing.Any = None,
        in_displacements: typing.Any = None,
        timeout: float | None = None,
    ) -> None:
        """
        Uneven all-to-all: in_counts[r] elements of inp go to rank r, out_counts[r] elements of out come from it; counts and displacements in elements of each array's dtype (bytes for Memory and ConnBuffer). Displacements default to packed. InvalidArgumentError where a peer sent another amount than expected. Collective.
        """
    def _ibarrier(self, timeout: float | None) -> Work: ...
    def _inotifications(self, timeout: float | None) -> _NotificationsWork: ...
    def _inotify(self, dst: typing.SupportsIndex, notify: typing.Any, timeout: float | None) -> Work: ...
    def _iwait_notify(self, src: typing.SupportsIndex, id: typing.Any, count: typing.Any, timeout: float | None) -> Work: ...
    def barrier(self, timeout: float | None = None) -> None:
        """
        Returns when every rank has arrived. Collective.
        """
    async def barrier_async(self, timeout: float | None = None) -> None:
        """
        As barrier(), as a coroutine that takes no thread. Cancelling takes effect at once; the Communicator is then unusable, as after a timeout.
        """
    def buffer(self, nbytes: typing.SupportsIndex) -> ConnBuffer:
        """
        Allocates and registers zero-filled memory on this Member's device.
        """
    def exchange(self, buffer: ConnBuffer, timeout: float | None = None) -> list[RemoteBuffer]:
        """
        Every rank's buffer as a list of RemoteBuffers, the own one included. Collective.
        """
    def exchange_bytes(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """
        Every rank's bytes (at most 64 KiB each) as a list. Collective.
        """
    def fence(self, dst: typing.SupportsIndex) -> None:
        """
        What is posted to dst afterwards becomes visible only after everything posted before.
        """
    def get_blocks(self, batch: BlockBatch, stream: typing.Any = None) -> Work:
        """
        Gets every block. stream: as in get.
        """
    def iall_to_all(self, out: typing.Any, inp: typing.Any, algorithm: str | None = None, stream: typing.Any = None) -> Work:
        """
        As all_to_all of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def iall_to_all_v(
        self,
        out: typing.Any,
        out_counts: typing.Any,
        inp: typing.Any,
        in_counts: typing.Any,
        out_displacements: typing.Any = None,
        in_displacements: typing.Any = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As all_to_all_v, but returns a Work at once. stream: as in iall_reduce.
        """
    def notifications(self, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
        """
        Payload notifications as (source, bytes) in arrival order; waits up to timeout for the first.
        """
    async def notifications_async(self, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
        """
        As notifications(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    def notify(self, dst: typing.SupportsIndex, notify: typing.Any, timeout: float | None = None) -> None:
        """
        Raises a notification without data: an int (counted) or bytes. Returns once it is queued; waits while thousands before it are not accepted by a peer that is stopped or does not read. HmcTimeoutError: nothing was sent.
        """
    async def notify_async(self, dst: int, notify: typing.Any, timeout: float | None = None) -> None:
        """
        As notify(), as a coroutine that takes no thread. Cancelling takes effect at once: the notification was raised, or is not sent.
        """
    def path(self, dst: typing.SupportsIndex, timeout: float | None = 30.0) -> Path:
        """
        The Path to another rank; connects if need be.
        """
    def batch(self, timeout: float | None = None) -> Batch:
        """
        A Batch, for a with statement: collectives that this thread calls in its block are checked and collected, and carried out together at its end, in any order. timeout: seconds for all of them.
        """
    def plan(
        self,
        call: str,
        nbytes: typing.SupportsIndex,
        *,
        dtype: typing.Any = "float32",
        root: typing.SupportsIndex = 0,
        algorithm: str | None = None,
        exact: bool = False,
    ) -> CollectivePlan:
        """
        How a collective ("all_reduce", "broadcast", ...) on memory of the Members' devices is carried out, why, and how long it should take: a CollectivePlan. nbytes: size of the largest array of a rank. dtype: of calls that reduce; root: of calls that have one; algorithm, exact: as the call takes them. Neither collective nor blocking.
        """
    def prepare_blocks(self, pairs: collections.abc.Iterable[typing.Any], block: typing.SupportsIndex) -> BlockBatch:
        """
        Checks scattered blocks of `block` bytes: pairs of (local buffer, offsets, remote buffer, offsets), offsets as integer arrays; all remote buffers of one rank.
        """
    def put_blocks(self, batch: BlockBatch, notify: typing.Any = None, complete: str = "remote", stream: typing.Any = None) -> Work:
        """
        Puts every block; one notification covers all. stream: as in put.
        """
    async def wait_notify_async(self, src: int, id: int, count: int = 1, timeout: float | None = None) -> None:
        """
        As wait_notify(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    @property
    def device(self) -> str:
        """
        Its device.
        """
    @property
    def rank(self) -> int:
        """
        Rank of this Member.
        """
    @property
    def size(self) -> int:
        """
        Number of ranks.
        """

class TopologyCard:
    """
    A card, or a host's CPU memory. Facts that are not known are empty, 0 or None.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def bus(self) -> str:
        """
        The PCI root and bridges above it.
        """
    @property
    def device(self) -> str:
        """
        As the process that brings it counts: "cuda:0".
        """
    @property
    def host(self) -> str:
        """
        Name of its host.
        """
    @property
    def host_bandwidth(self) -> float:
        """
        To and from host memory, bytes per second and direction.
        """
    @property
    def memory_bytes(self) -> int:
        """
        Size of its memory.
        """
    @property
    def model(self) -> str:
        """
        What the vendor calls it.
        """
    @property
    def name(self) -> str:
        """
        Unique in its Topology.
        """
    @property
    def numa_node(self) -> int | None:
        """
        Of its host.
        """
    @property
    def pci(self) -> str:
        """
        PCI address.
        """
    @property
    def process(self) -> int | None:
        """
        Number of the process that brings it into a job; None: it takes no part.
        """
    @property
    def provenance(self) -> str:
        """
        "hardware", "simulated", "facade"; empty: written down.
        """

class TopologyNic:
    """
    A network card.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def bandwidth(self) -> float:
        """
        Bytes per second and direction; 0: not known.
        """
    @property
    def bus(self) -> str:
        """
        The PCI root and bridges above it.
        """
    @property
    def host(self) -> str:
        """
        Name of its host.
        """
    @property
    def kind(self) -> str:
        """
        "ethernet", "infiniband", "roce".
        """
    @property
    def name(self) -> str:
        """
        Unique on its host.
        """
    @property
    def numa_node(self) -> int | None:
        """
        Of its host.
        """
    @property
    def pci(self) -> str:
        """
        PCI address.
        """

class TopologyLink:
    """
    Two cards that reach each other without host memory, in both directions.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def a(self) -> str:
        """
        Name of a card.
        """
    @property
    def b(self) -> str:
        """
        Name of a card.
        """
    @property
    def bandwidth(self) -> float:
        """
        Bytes per second and direction; 0: not known.
        """
    @property
    def kind(self) -> str:
        """
        "nvlink", "peer", "same card", or the application's word.
        """

class Topology:
    """
    Hosts, the cards in them, what joins them, and which process of a job brings which card: discovered, or written down. Not to be changed by two threads at once.
    """

    __hash__: typing.ClassVar[None] = None  # type: ignore[assignment]
    @staticmethod
    def discover() -> Topology:
        """
        This host, with every device and network card. Opens vendor libraries.
        """
    @staticmethod
    def distance(card: TopologyCard, nic: TopologyNic) -> str:
        """
        "switch" (a PCIe switch joins them), "root" (the same PCIe root), "node" (the same NUMA node), "system" (farther), or empty: not known, or not on one host.
        """
    @staticmethod
    def load(file: str | bytes | os.PathLike[str]) -> Topology:
        """
        Reads a file.
        """
    @staticmethod
    def parse(text: str) -> Topology:
        """
        Reads what str() writes. InvalidArgumentError with the line.
        """
    def __eq__(self, arg0: typing.Any) -> bool: ...
    def __init__(self) -> None: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    def add_card(
        self,
        host: str,
        device: typing.Any,
        process: typing.SupportsIndex | None = None,
        *,
        name: str = "",
        model: str = "",
        pci: str = "",
        numa_node: typing.SupportsIndex | None = None,
        memory_bytes: typing.SupportsIndex = 0,
        host_bandwidth: float = 0.0,
        bus: str = "",
    ) -> str:
        """
        Adds a card, and its host where that is new. process: which process of the job brings it; ranks go by process, then in the order of adding. Returns its name, default "host/device".
        """
    def add_link(self, a: str, b: str, *, kind: str = "peer", bandwidth: float = 0.0) -> None:
        """
        Says that two cards reach each other without host memory.
        """
    def add_nic(
        self,
        host: str,
        name: str,
        *,
        kind: str = "ethernet",
        bandwidth: float = 0.0,
        pci: str = "",
        numa_node: typing.SupportsIndex | None = None,
        bus: str = "",
    ) -> None:
        """
        Adds a network card, and its host where that is new.
        """
    def check(self) -> None:
        """
        InvalidArgumentError naming what does not fit together.
        """
    def members(self) -> list[TopologyCard]:
        """
        The cards that take part, by rank.
        """
    def near(self, nic: TopologyNic) -> list[str]:
        """
        Names of the cards nearest to a network card; none where nothing is known of it.
        """
    def save(self, file: str | bytes | os.PathLike[str]) -> None:
        """
        Writes a file that load() reads, also meanwhile: it finds all of the new file, or what was there before.
        """
    @property
    def cards(self) -> list[TopologyCard]:
        """
        Every card, as TopologyCards.
        """
    @property
    def hosts(self) -> list[str]:
        """
        Names of the hosts.
        """
    @property
    def links(self) -> list[TopologyLink]:
        """
        Every link, as TopologyLinks.
        """
    @property
    def nics(self) -> list[TopologyNic]:
        """
        Every network card, as TopologyNics.
        """
    @property
    def processes(self) -> int:
        """
        How many processes bring cards.
        """

class PlannedStep:
    """
    One of the steps by which a rank carries out its part of a collective.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def after(self) -> tuple[int, ...]:
        """
        Indices of the steps of this rank that must be complete before.
        """
    @property
    def bytes(self) -> int:
        """
        Of each source, and of the target.
        """
    @property
    def kind(self) -> str:
        """
        "send", "receive", "copy" or "reduce".
        """
    @property
    def peer(self) -> int:
        """
        The other rank; own for copies, reductions and messages to itself.
        """
    @property
    def sources(self) -> tuple[tuple[str, int], ...]:
        """
        What is read: a (buffer, offset in bytes) for each source, in the order in which they are reduced; buffer is "in", "out" or "scratch". A receive has none.
        """
    @property
    def tag(self) -> int:
        """
        Of messages: alike for a send and its receive, distinct between one pair of ranks in one direction.
        """
    @property
    def target(self) -> tuple[str, int] | None:
        """
        What is written: a (buffer, offset in bytes); a reduction's may be one of its sources. None: a send.
        """

class PlannedLink:
    """
    What one rank sends to another in a collective, and the figures of the link.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def bandwidth(self) -> float:
        """
        Bytes per second.
        """
    @property
    def basis(self) -> str:
        """
        What the figures rest on: "measured" (by measure()), "path" (what Path expects), "topology" (written down), "alike" (the measurement or Path of a link like it), "default", "given".
        """
    @property
    def bytes(self) -> int:
        """
        Bytes sent.
        """
    @property
    def latency_us(self) -> float:
        """
        One-way latency of a small message, microseconds.
        """
    @property
    def source(self) -> int:
        """
        Rank.
        """
    @property
    def target(self) -> int:
        """
        Rank.
        """

class Batch:
    """
    Collectives that go together: the block of a with statement. Blocking collectives that its thread calls on the Communicator return at once, and their results are there when the block has ended. An exception in the block discards them.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __enter__(self) -> Batch: ...
    def __exit__(self, *args: typing.Any) -> None: ...
    def __len__(self) -> int: ...
    def start(self) -> Work:
        """
        Starts all calls, in place of the block's end, and returns one Work for them and the messages. InvalidArgumentError: there is nothing to start, as the batch was started or has ended.
        """

class CollectivePlan:
    """
    How a collective is carried out, why, and how long it should take. str() is a table.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    @property
    def algorithm(self) -> str:
        """
        Such as "reduce-scatter + all-gather, chunks of 256 KiB".
        """
    @property
    def algorithms(self) -> tuple[str, ...]:
        """
        Names of all that can carry out the call, for algorithm=.
        """
    @property
    def bytes(self) -> int:
        """
        Size of the largest array of a rank.
        """
    @property
    def call(self) -> str:
        """
        Name of the collective.
        """
    @property
    def element(self) -> int:
        """
        Bytes of an element, of calls that reduce; else 0.
        """
    def export(self, format: str, path: typing.Any) -> tuple[typing.Any, ...]:
        """
        Writes the schedule for another program, and returns the paths of the files. format "chakra": an MLCommons Chakra execution trace for each rank, path.0.et, path.1.et, ...; requires protobuf (the extra chakra). "msccl": one algorithm in MSCCL's XML, of all_reduce, reduce_scatter, all_gather or all_to_all in equal chunks. path: str or os.PathLike; files there are replaced. UnsupportedError: what schedule() raises; a plan that the format cannot hold, and why. OSError; ImportError: protobuf is not installed.
        """
    @property
    def figures(self) -> str:
        """
        What the prediction rests on: "measured" and when, ", from the cache" if so; "estimated" or "assumed".
        """
    @property
    def links(self) -> tuple[PlannedLink, ...]:
        """
        A PlannedLink for every ordered pair of ranks with messages, by source, then target.
        """
    @property
    def lower_bound(self) -> float:
        """
        Seconds that any algorithm takes over these links.
        """
    @property
    def ranks(self) -> int:
        """
        Number of ranks.
        """
    @property
    def reason(self) -> str:
        """
        Why this algorithm, in sentences.
        """
    @property
    def runner_up(self) -> tuple[str, float] | None:
        """
        Another algorithm, and its predicted seconds; beside one that was named, HMC's choice. None: there is no other.
        """
    def schedule(self) -> tuple[tuple[PlannedStep, ...], ...]:
        """
        The PlannedSteps of every rank: a tuple of tuples, by rank. Steps without `after` are posted in this order. UnsupportedError: the call goes through shared or mapped memory, not by messages; more than 2^18 steps.
        """
    @property
    def seconds(self) -> float:
        """
        Predicted, from the start of all ranks to the end of the last.
        """

class MeasuredLink:
    """
    The figures of a link between two ranks, in one direction.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def bandwidth(self) -> float:
        """
        Bytes per second from source to target, with nothing else on the links.
        """
    @property
    def latency_us(self) -> float:
        """
        One-way latency of a small message, microseconds.
        """
    @property
    def source(self) -> int:
        """
        Rank.
        """
    @property
    def target(self) -> int:
        """
        Rank.
        """

class Measurement:
    """
    Latency and bandwidth of links, as measure() found them. str() is a table.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    @property
    def cached(self) -> bool:
        """
        Whether they were read from rank 0's cache file, not measured by this call.
        """
    @property
    def links(self) -> tuple[MeasuredLink, ...]:
        """
        A MeasuredLink for both directions of every measured pair of ranks.
        """
    @property
    def time(self) -> int:
        """
        When they were measured, in seconds since 1970 UTC, by rank 0's clock.
        """

class ExpertCall:
    """
    The steps of a call, each of which is done once with a rank, whatever interrupts. They return what failed as (rank, exception). One thread at a time.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def acknowledge(
        self, comm: Communicator, ranks: collections.abc.Sequence[typing.SupportsInt], notification: typing.SupportsInt
    ) -> None:
        """
        Notifies ranks. Does not wait, and ignores errors.
        """
    def came(self, ranks: collections.abc.Sequence[typing.SupportsInt]) -> list[int]:
        """
        Those of the ranks whose headers were read.
        """
    def check_not_masked(self, ranks: collections.abc.Sequence[typing.SupportsInt]) -> None:
        """
        PeerLostError: a rank has masked this one.
        """
    def read(self, ranks: collections.abc.Sequence[typing.SupportsInt]) -> list[typing.Any]:
        """
        Copies and checks headers. ClosedError: the rank has closed its Buffer. PeerLostError: it has masked this one.
        """
    def send(
        self,
        comm: Communicator,
        outbox: ConnBuffer,
        windows: collections.abc.Sequence[RemoteBuffer],
        ranks: collections.abc.Sequence[typing.SupportsInt],
    ) -> list[typing.Any]:
        """
        Puts the headers into the windows of ranks.
        """
    def sent(self, ranks: collections.abc.Sequence[typing.SupportsInt]) -> list[int]:
        """
        Those of the ranks to which a header went.
        """
    def take(
        self, comm: Communicator, ranks: collections.abc.Sequence[typing.SupportsInt], timeout: float | None
    ) -> list[typing.Any]:
        """
        Waits for the notifications of headers.
        """
    def wait(self, ranks: collections.abc.Sequence[typing.SupportsInt], timeout: float | None) -> list[typing.Any]:
        """
        Waits for transfers from ranks. Where this rank is among them, also for the copies that its device makes.
        """
    def works(self, rank: typing.SupportsInt) -> list[Work]:
        """
        The transfers from a rank.
        """
    def write(self, ranks: collections.abc.Sequence[typing.SupportsInt]) -> None:
        """
        Writes the headers for ranks into the outbox.
        """

class ExpertCombine(ExpertCall):
    """
    The steps of a combine.
    """

    def __init__(
        self, routes: ExpertRoutes, received: ExpertReceived, number: typing.SupportsInt, outbox: typing.Any, window: typing.Any
    ) -> None: ...
    def add_up(self, out: typing.Any, dtype: typing.Any, missing: collections.abc.Sequence[typing.SupportsInt]) -> int:
        """
        The weighted sum of what load() and get() found, without the results of missing ranks, by the device of `out`, which is that
        of load(). Returns how many it has. Releases the GIL.
        """
    def descriptor(self, rank: typing.SupportsInt) -> bytes:
        """
        Of the buffer with the results of a rank; empty: none.
        """
    def get(
        self,
        comm: Communicator,
        into: ConnBuffer,
        row_bytes: typing.SupportsInt,
        sources: collections.abc.Sequence[tuple[typing.SupportsInt, RemoteBuffer]],
    ) -> list[typing.Any]:
        """
        Starts to get the results of (rank, its buffer).
        """
    def load(
        self,
        device: typing.Any,
        row_bytes: typing.SupportsInt,
        sources: collections.abc.Sequence[tuple[typing.SupportsInt, RemoteBuffer]],
    ) -> list[int]:
        """
        Leaves the results of (rank, its buffer) where they are if the device can load them. The ranks of the others.
        """
    def offer(self, descriptor: bytes) -> None:
        """
        Before write(): the buffer with this rank's results. Without it the rank has none.
        """

class ExpertDispatch(ExpertCall):
    """
    The steps of a dispatch.
    """

    def __init__(
        self, routes: ExpertRoutes, received: ExpertReceived, number: typing.SupportsInt, outbox: typing.Any, window: typing.Any
    ) -> None: ...
    def copies(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        (rows to copy, rows to write): of tokens that were transferred once for several rows.
        """
    def get(
        self,
        comm: Communicator,
        parts: collections.abc.Sequence[tuple[ConnBuffer, typing.SupportsInt, typing.SupportsInt]],
        sources: collections.abc.Sequence[RemoteBuffer],
        mapped: collections.abc.Sequence[bool],
        ranks: collections.abc.Sequence[typing.SupportsInt],
    ) -> list[typing.Any]:
        """
        Starts to get the rows of ranks. parts: (ConnBuffer, bytes of a row, offset of the first at the source).
        """
    def load(
        self,
        device: typing.Any,
        parts: collections.abc.Sequence[tuple[ConnBuffer, typing.SupportsInt, typing.SupportsInt]],
        sources: collections.abc.Sequence[RemoteBuffer],
        ranks: collections.abc.Sequence[typing.SupportsInt],
    ) -> list[int]:
        """
        Starts to copy the rows of ranks whose memory the device can load from; a wait() for this rank waits for them. Returns the others, whose rows get() takes.
        """

class ExpertLayout:
    """
    What the ranks of an hmc.experts.Buffer agree on. Immutable.
    """

    @staticmethod
    def notification(step: typing.SupportsInt, number: typing.SupportsInt) -> int:
        """
        What the put of a header raises.
        """
    def __init__(
        self,
        ranks: typing.SupportsInt,
        rank: typing.SupportsInt,
        experts: typing.SupportsInt,
        tokens: typing.SupportsInt,
        topk: typing.SupportsInt,
        once: bool,
    ) -> None: ...
    def place(self, step: typing.SupportsInt, number: typing.SupportsInt, rank: typing.SupportsInt) -> int:
        """
        First word of the header of dispatch (step 0) or combine (1): of a sender in the window, of a receiver in the outbox.
        """
    @property
    def words(self) -> int:
        """
        64-bit words of a window, and of an outbox.
        """

class ExpertReceived:
    """
    Which rows a rank has of one dispatch.
    """

    def __init__(self, layout: ExpertLayout) -> None: ...
    def arrange(self) -> None:
        """
        Finds the place of every row, once the headers were read.
        """
    def counts(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        Rows by local expert, or one number where rows are sent to ranks.
        """
    def facts(self) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.float32]]:
        """
        By row and choice: (local experts, weights), -1 for none.
        """
    def lose(self, rank: typing.SupportsInt) -> None:
        """
        The rows of a rank are not there: they have no experts.
        """
    def rows_of(self, rank: typing.SupportsInt) -> numpy.typing.NDArray[numpy.int64]:
        """
        Row of each pair of a source, in the order of sending.
        """
    def sources(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        By row: (rank, token) that it came from.
        """
    @property
    def rows(self) -> int:
        """
        Number of rows.
        """

class ExpertRoutes:
    """
    Where the tokens of one dispatch go. Copies its arrays. Immutable.
    """

    def __init__(self, layout: ExpertLayout, ids: typing.Any, weights: typing.Any) -> None: ...
    def factors(self) -> numpy.typing.NDArray[numpy.float32]:
        """
        By token and result: its weight in the sum.
        """
    def lost(self, missing: collections.abc.Sequence[typing.SupportsInt]) -> numpy.typing.NDArray[numpy.bool_]:
        """
        By token and choice: whether the expert is of a missing rank.
        """
    def pairs_to(self, rank: typing.SupportsInt) -> int:
        """
        Number of rows that a rank is sent.
        """
    def used(self, missing: collections.abc.Sequence[typing.SupportsInt]) -> numpy.typing.NDArray[numpy.bool_] | None:
        """
        By token and result: whether it is there, without those of missing ranks. None: all are.
        """
    @property
    def tokens(self) -> int:
        """
        Number of tokens.
        """
    @property
    def width(self) -> int:
        """
        Largest number of results of a token.
        """

class IslandCards:
    """
    Equal cards of one vendor, for plan_islands.
    """
    def __init__(
        self,
        name: str,
        cards: typing.SupportsIndex,
        *,
        inside: float,
        nic: float,
        memory: float,
        per_host: typing.SupportsIndex = 8,
    ) -> None:
        """
        cards: of all hosts together, per_host of them on each. Bytes per second of one card: inside: in one direction to the other cards of its host together; nic: in one direction to cards of other hosts; memory: reads and writes.
        """
    def __repr__(self) -> str: ...
    @property
    def cards(self) -> int:
        """
        Cards of all hosts together.
        """
    @property
    def inside(self) -> float:
        """
        Bytes per second and direction to the other cards of its host together.
        """
    @property
    def memory(self) -> float:
        """
        Bytes per second read and written.
        """
    @property
    def name(self) -> str:
        """
        For reports.
        """
    @property
    def nic(self) -> float:
        """
        Bytes per second and direction to cards of other hosts.
        """
    @property
    def per_host(self) -> int:
        """
        Cards of a host.
        """

class IslandLoad:
    """
    What the hierarchical algorithm takes of an island's busiest card.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    @property
    def between_seconds(self) -> float:
        """
        Time of its NIC or border link.
        """
    @property
    def cards(self) -> int:
        """
        Of the island.
        """
    @property
    def inside_seconds(self) -> float:
        """
        Time of its links within a host.
        """
    @property
    def memory_seconds(self) -> float:
        """
        Time of its memory.
        """
    @property
    def name(self) -> str:
        """
        Of the island.
        """
    @property
    def share(self) -> float:
        """
        Part of the array that the island reduces for all, or passes on; of calls with blocks, its own blocks.
        """

class IslandPlan:
    """
    What a collective over islands of unequal cards takes. str() is a table.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    def __str__(self) -> str: ...
    @property
    def algorithm(self) -> str:
        """
        The faster one, "hierarchical" or "flat".
        """
    @property
    def busiest(self) -> str:
        """
        The resource that takes longest, such as "NICs of 8xH200".
        """
    @property
    def call(self) -> str:
        """
        Name of the collective.
        """
    @property
    def bytes(self) -> int:
        """
        Size of each card's array.
        """
    @property
    def cards(self) -> int:
        """
        Cards of all islands.
        """
    @property
    def even_seconds(self) -> float:
        """
        Predicted for the hierarchical algorithm with equal shares of all islands and border links.
        """
    @property
    def islands(self) -> tuple[IslandLoad, ...]:
        """
        An IslandLoad for each island.
        """
    @property
    def lower_bound(self) -> float:
        """
        Seconds that any algorithm takes.
        """
    @property
    def runner_up(self) -> tuple[str, float]:
        """
        The other algorithm, and its predicted seconds.
        """
    @property
    def seconds(self) -> float:
        """
        Predicted.
        """

class Communicator:
    """
    A fixed, ranked group. Rank-addressed calls go to the only local Member; with several, call them on comm.local[i]. Use it as a context manager. Any thread; collectives in the same order on every rank.
    """
    def __init__(self, *args: typing.Any, **kwargs: typing.Any) -> None: ...
    def get(self, target: ConnBuffer, source: RemoteBuffer, stream: typing.Any = None) -> Work:
        """
        Reads a RemoteBuffer slice into a ConnBuffer slice of equal size; returns a Work. stream: of the target's device, as in put.
        """
    def irecv(self, array: typing.Any, src: int, tag: int = 0, stream: typing.Any = None) -> Work:
        """
        As recv, but returns a Work at once; work.info tells what came. stream: as in isend.
        """
    def isend(self, array: typing.Any, dst: int, tag: int = 0, stream: typing.Any = None) -> Work:
        """
        As send, but returns a Work at once. stream: of the array's device; the transfer starts after what is queued on it (default: the stream that a framework's array is produced on).
        """
    def put(
        self,
        source: ConnBuffer,
        target: RemoteBuffer,
        notify: int | bytes | None = None,
        complete: str = "remote",
        stream: typing.Any = None,
    ) -> Work:
        """
        Writes a ConnBuffer slice into a RemoteBuffer slice of equal size; returns a Work. notify: an int (counted) or bytes (at most 1024), raised at the target once the bytes are visible there. complete: "remote" or "local". stream: of the source's device (int, framework stream, __cuda_stream__); the transfer starts after what is queued on it.
        """
    def recv(self, array: typing.Any, src: int, tag: int = 0, timeout: float | None = None) -> MessageInfo:
        """
        Receives into a writable contiguous array; returns MessageInfo(source, tag, bytes). tag may be ANY_TAG, src ANY_SOURCE. A message longer than the array raises InvalidArgumentError; a shorter one is fine. A timeout withdraws the receive; the message says whether the array may have been written.
        """
    def send(self, array: typing.Any, dst: int, tag: int = 0, timeout: float | None = None) -> None:
        """
        Sends an array's bytes; returns when it may be reused. tag: 0 to 2**62.
        """
    def wait_notify(self, src: int, id: int, count: int = 1, timeout: float | None = None) -> None:
        """
        Waits until notification `id` was raised `count` times and consumes them. HmcTimeoutError consumes nothing.
        """
    def __enter__(self) -> Communicator: ...
    def __exit__(self, *args: typing.Any) -> None: ...
    def __repr__(self) -> str: ...
    def abort(self, reason: str = "") -> None:
        """
        Ends every collective of the Communicator on every rank, those in flight and all later ones, with HmcCancelledError, which has this rank and the reason (at most 1 KiB of it on other ranks). Does not wait. Any thread, also while another one waits in a collective. Point-to-point goes on.
        """
    def all_reduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        timeout: float | None = None,
        exact: bool = False,
        algorithm: str | None = None,
    ) -> None:
        """
        Reduces inp of every rank into out of every rank; without inp, out in place. op: sum, product, min, max, avg, band, bor, bxor, or premul_sum, which multiplies by factor before (alike on every rank). Every rank gets the same bits. exact: of sum, avg and premul_sum; each sum is rounded once, so it does not depend on the order of the ranks. algorithm: one of plan().algorithms, alike on every rank; None: HMC chooses. dtype: for arrays without one. Several local Members: {member: (out, inp)} or {member: array}. Collective.
        """
    def iall_reduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        exact: bool = False,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As all_reduce of arrays, but returns a Work at once. stream: of the arrays' device; the call starts after what is queued on it, and what is queued there later waits for the call, with whatever outcome (default: it starts after the stream that a framework's arrays are produced on, and Work.join orders what comes later).
        """
    def reduce_scatter(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        op: str = "sum",
        counts: typing.Any = None,
        factor: typing.Any = None,
        dtype: typing.Any = None,
        timeout: float | None = None,
        exact: bool = False,
        algorithm: str | None = None,
    ) -> None:
        """
        Reduces block r of every rank's inp into out of rank r. counts: elements of each rank's block; default: equal blocks. op, factor, dtype, exact, algorithm: as all_reduce. Several local Members: {member: (out, inp)}. Collective.
        """
    def ireduce_scatter(
        self,
        out: typing.Any,
        inp: typing.Any,
        op: str = "sum",
        counts: typing.Any = None,
        factor: typing.Any = None,
        dtype: typing.Any = None,
        exact: bool = False,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As reduce_scatter of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def reduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        timeout: float | None = None,
        exact: bool = False,
        algorithm: str | None = None,
    ) -> None:
        """
        Reduces inp of every rank into out of root; other ranks may pass None as out. op, factor, dtype, exact, algorithm: as all_reduce. Several local Members: {member: (out, inp)}. Collective.
        """
    def ireduce(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        op: str = "sum",
        factor: typing.Any = None,
        dtype: typing.Any = None,
        exact: bool = False,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As reduce of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def all_gather(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> None:
        """
        inp of rank r becomes block r of out of every rank; inp may be that block. counts, displacements: elements of the blocks of out; default: equal blocks, packed. algorithm: as all_reduce. Several local Members: {member: (out, inp)}. Collective.
        """
    def iall_gather(
        self,
        out: typing.Any,
        inp: typing.Any,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        algorithm: str | None = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As all_gather of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def broadcast(
        self, array: typing.Any, root: typing.SupportsInt = 0, timeout: float | None = None, algorithm: str | None = None
    ) -> None:
        """
        array of root becomes array of every rank. algorithm: as all_reduce. Several local Members: {member: array}. Collective.
        """
    def ibroadcast(
        self, array: typing.Any, root: typing.SupportsInt = 0, algorithm: str | None = None, stream: typing.Any = None
    ) -> Work:
        """
        As broadcast of an array, but returns a Work at once. stream: as in iall_reduce.
        """
    def gather(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        timeout: float | None = None,
    ) -> None:
        """
        inp of rank r becomes block r of out of root; other ranks may pass None as out. counts, displacements: elements of the blocks of out; default: equal blocks, packed. Several local Members: {member: (out, inp)}. Collective.
        """
    def igather(self, out: typing.Any, inp: typing.Any, root: typing.SupportsInt = 0, stream: typing.Any = None) -> Work:
        """
        As gather of equal blocks, but returns a Work at once. stream: as in iall_reduce.
        """
    def scatter(
        self,
        out: typing.Any,
        inp: typing.Any = None,
        root: typing.SupportsInt = 0,
        counts: typing.Any = None,
        displacements: typing.Any = None,
        timeout: float | None = None,
    ) -> None:
        """
        Block r of inp of root becomes out of rank r; other ranks may leave inp out. counts, displacements: elements of the blocks of inp; default: equal blocks, packed. Several local Members: {member: (out, inp)}. Collective.
        """
    def iscatter(self, out: typing.Any, inp: typing.Any = None, root: typing.SupportsInt = 0, stream: typing.Any = None) -> Work:
        """
        As scatter of equal blocks, but returns a Work at once. stream: as in iall_reduce.
        """
    def all_to_all(
        self, out: typing.Any, inp: typing.Any = None, timeout: float | None = None, algorithm: str | None = None
    ) -> None:
        """
        Block r of inp goes to rank r, block r of out comes from it. algorithm: one of plan().algorithms, alike on every rank; None: HMC chooses. Several local Members: all_to_all({member: (out, inp), ...}). Collective.
        """
    @typing.overload
    def all_to_all_v(
        self,
        out: typing.Any,
        out_counts: typing.Any,
        inp: typing.Any,
        in_counts: typing.Any,
        out_displacements: typing.Any = None,
        in_displacements: typing.Any = None,
        timeout: float | None = None,
    ) -> None:
        """
        Uneven all-to-all: in_counts[r] elements of inp go to rank r, out_counts[r] elements of out come from it; counts and displacements in elements of each array's dtype (bytes for Memory and ConnBuffer). Displacements default to packed. InvalidArgumentError where a peer sent another amount than expected. Collective.
        """
    @typing.overload
    def all_to_all_v(self, members: dict[typing.Any, typing.Any], timeout: float | None = None) -> None:
        """
        As all_to_all_v of {member: (out, out_counts, inp, in_counts)} for every local Member. Collective.
        """
    def _ibarrier(self, timeout: float | None) -> Work: ...
    def _inotifications(self, timeout: float | None) -> _NotificationsWork: ...
    def _inotify(self, dst: typing.SupportsIndex, notify: typing.Any, timeout: float | None) -> Work: ...
    def _iwait_notify(self, src: typing.SupportsIndex, id: typing.Any, count: typing.Any, timeout: float | None) -> Work: ...
    def barrier(self, timeout: float | None = None) -> None:
        """
        Returns when every rank has arrived; joins with every local Member. Collective.
        """
    async def barrier_async(self, timeout: float | None = None) -> None:
        """
        As barrier(), as a coroutine that takes no thread. Cancelling takes effect at once; the Communicator is then unusable, as after a timeout.
        """
    def buffer(self, nbytes: typing.SupportsIndex, device: typing.Any = "cpu") -> ConnBuffer:
        """
        Allocates and registers zero-filled memory.
        """
    def close(self, timeout: float | None = 5.0) -> None:
        """
        Leaves the group. The Context closes with the Communicator of init() or join(), or with the last of those that shrink() and grow() made from it; HmcTimeoutError then, as of Context.close(). Idempotent.
        """
    def device(self, rank: typing.SupportsIndex) -> str:
        """
        Device name of a rank.
        """
    @typing.overload
    def exchange(self, buffer: ConnBuffer, timeout: float | None = None) -> list[RemoteBuffer]:
        """
        Every rank's buffer as a list of RemoteBuffers, the own one included. Collective.
        """
    @typing.overload
    def exchange(self, members: dict[typing.Any, typing.Any], timeout: float | None = None) -> list[RemoteBuffer]:
        """
        As exchange of {member: buffer} for every local Member. Collective.
        """
    @typing.overload
    def exchange_bytes(self, data: bytes, timeout: float | None = None) -> list[bytes]:
        """
        Every rank's bytes (at most 64 KiB each) as a list. Collective.
        """
    @typing.overload
    def exchange_bytes(self, members: dict[typing.Any, typing.Any], timeout: float | None = None) -> list[bytes]:
        """
        As exchange_bytes of {member: bytes} for every local Member. Collective.
        """
    def fence(self, dst: typing.SupportsIndex) -> None:
        """
        What is posted to dst afterwards becomes visible only after everything posted before.
        """
    def get_blocks(self, batch: BlockBatch, stream: typing.Any = None) -> Work:
        """
        Gets every block. stream: as in get.
        """
    def iall_to_all(self, out: typing.Any, inp: typing.Any, algorithm: str | None = None, stream: typing.Any = None) -> Work:
        """
        As all_to_all of arrays, but returns a Work at once. stream: as in iall_reduce.
        """
    def iall_to_all_v(
        self,
        out: typing.Any,
        out_counts: typing.Any,
        inp: typing.Any,
        in_counts: typing.Any,
        out_displacements: typing.Any = None,
        in_displacements: typing.Any = None,
        stream: typing.Any = None,
    ) -> Work:
        """
        As all_to_all_v, but returns a Work at once. stream: as in iall_reduce.
        """
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """
        Tuples of ranks whose devices are of one vendor and on one host, as the topology given to init() or the hosts' kernels say. Not collective.
        """
    def measure(self, *, refresh: bool = False, timeout: float | None = 60.0) -> Measurement:
        """
        Measures latency and bandwidth of links with messages between the Members' devices, and plans with them from then on; returns a Measurement, the same on every rank. Hierarchical calls divide their work in proportion to measured bandwidth. refresh: measure even if rank 0 has figures in its cache file. Measured are every pair of ranks of two islands (of more than 64, fewer) and three pairs of each island, 40 ms and at most 170 MB each, one after the other. Collective, one call per process; not within a batch. OutOfMemoryError: a rank has no 8 MiB on its device; UnsupportedError: more than 256 ranks.
        """
    def notifications(self, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
        """
        Payload notifications as (source, bytes) in arrival order; waits up to timeout for the first.
        """
    async def notifications_async(self, timeout: float | None = 0.0) -> list[tuple[int, bytes]]:
        """
        As notifications(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    def notify(self, dst: typing.SupportsIndex, notify: typing.Any, timeout: float | None = None) -> None:
        """
        Raises a notification without data: an int (counted) or bytes. Returns once it is queued; waits while thousands before it are not accepted by a peer that is stopped or does not read. HmcTimeoutError: nothing was sent.
        """
    async def notify_async(self, dst: int, notify: typing.Any, timeout: float | None = None) -> None:
        """
        As notify(), as a coroutine that takes no thread. Cancelling takes effect at once: the notification was raised, or is not sent.
        """
    def path(
        self, dst: typing.SupportsIndex, source: typing.Any = None, target: typing.Any = None, timeout: float | None = 30.0
    ) -> Path:
        """
        The Path to a rank, or between two devices; connects if need be.
        """
    def peer(self, rank: typing.SupportsIndex, timeout: float | None = 30.0) -> Peer:
        """
        The Peer of a rank; connects if need be.
        """
    def batch(self, timeout: float | None = None) -> Batch:
        """
        A Batch, for a with statement: collectives that this thread calls in its block are checked and collected, and carried out together at its end, in any order. timeout: seconds for all of them.
        """
    def plan(
        self,
        call: str,
        nbytes: typing.SupportsIndex,
        *,
        dtype: typing.Any = "float32",
        root: typing.SupportsIndex = 0,
        algorithm: str | None = None,
        exact: bool = False,
    ) -> CollectivePlan:
        """
        How a collective ("all_reduce", "broadcast", ...) on memory of the Members' devices is carried out, why, and how long it should take: a CollectivePlan. nbytes: size of the largest array of a rank. dtype: of calls that reduce; root: of calls that have one; algorithm, exact: as the call takes them. Neither collective nor blocking.
        """
    def prepare_blocks(self, pairs: collections.abc.Iterable[typing.Any], block: typing.SupportsIndex) -> BlockBatch:
        """
        Checks scattered blocks of `block` bytes: pairs of (local buffer, offsets, remote buffer, offsets), offsets as integer arrays; all remote buffers of one rank.
        """
    def put_blocks(self, batch: BlockBatch, notify: typing.Any = None, complete: str = "remote", stream: typing.Any = None) -> Work:
        """
        Puts every block; one notification covers all. stream: as in put.
        """
    def register(self, array: typing.Any, access: str = "rw") -> ConnBuffer:
        """
        Registers an array or Memory in place; keeps it alive. A read-only array needs access="r".
        """
    def invite(self, processes: typing.Any = 1) -> str:
        """
        The text that this many processes pass to hmc.join(), for the next grow(). A secret; the job key is not in it. It ends with grow(), or with another invite(). Rank 0 only.
        """
    def grow(self, timeout: float | None = None) -> Communicator:
        """
        Newcomers join: rank 0 has called invite(), every rank calls grow(), once per process, and each invited process calls hmc.join(). All get the same new Communicator, or an error: the ranks of this one as before, then the newcomers, in the order in which they came. HmcTimeoutError names what is missing; PeerLostError: a rank or a newcomer died.
        """
    def shrink(self, timeout: float | None = None) -> Communicator:
        """
        After a loss or an abort: the ranks that are left form a new Communicator, ranked as before. Each of them calls it, once per process, and gets the same ranks or an error. HmcTimeoutError names a rank that did not come.
        """
    def split(self, color: typing.Any, key: typing.Any = None, timeout: float | None = None) -> Communicator | None:
        """
        Members of equal color form a new Communicator, ranked by (key, old rank); a negative color or None joins none and returns None. Lists give one entry per local Member. Collective.
        """
    def subgroup(self, ranks: collections.abc.Sequence[typing.SupportsInt], number: typing.SupportsInt) -> Communicator:
        """
        The Communicator of these ranks of this one, in this order, made by its members alone, each with the same ranks and the same number (2 to 2147483647), which no other group of theirs has or had. Sends nothing and waits for nobody: use it once all members have made it, and call share_memory() first. InvalidArgumentError: ranks, or a number that is taken here.
        """
    def share_memory(self, timeout: float | None = None) -> None:
        """
        Where all ranks are on one host (2 to 32), they map the same memory, through which collectives then go, and which kernels of devices require. Only a Communicator of subgroup() needs it: without, it uses messages. Collective, one call per process, before any other collective (InvalidArgumentError). Does nothing where the ranks cannot share memory.
        """
    def topology(self, timeout: float | None = 60.0) -> Topology:
        """
        The Members' hosts, cards and links, as every process sees its own host. Opens vendor libraries. Collective, one call per process.
        """
    async def wait_notify_async(self, src: int, id: int, count: int = 1, timeout: float | None = None) -> None:
        """
        As wait_notify(), as a coroutine that takes no thread. Cancelling takes effect at once and loses nothing.
        """
    @property
    def context(self) -> Context:
        """
        The Context underneath.
        """
    @property
    def local(self) -> list[Member]:
        """
        This process's Members, by rank.
        """
    @property
    def lost(self) -> list[int]:
        """
        Ranks known to be dead.
        """
    @property
    def old_ranks(self) -> list[int]:
        """
        By rank: the rank in the Communicator that this one was made from by shrink(), split(), subgroup() or grow(), -1 for newcomers.
        """
    @property
    def rank(self) -> int:
        """
        Rank of the only local Member.
        """
    @property
    def size(self) -> int:
        """
        Number of ranks.
        """

def baseline_flag(
    shared: typing.Any,
    side: typing.SupportsIndex,
    iterations: typing.SupportsIndex,
    limit: typing.SupportsFloat | typing.SupportsIndex = 0.5,
) -> float:
    """
    Seconds for half a round trip over a raw flag in memory that two processes share (an mmap of one file); at most that many, and no longer than about limit seconds. For hmc bench.
    """

def below(numbers: typing.Any, end: typing.SupportsInt) -> bool: ...
def block_numbers(blocks: typing.Any, most: typing.SupportsInt, end: typing.SupportsInt) -> typing.Any: ...
def detect_launch() -> dict[str, typing.Any]: ...
def init(
    rank: typing.SupportsIndex = -1,
    size: typing.SupportsIndex = -1,
    rendezvous: str = "",
    devices: typing.Any = None,
    topology: Topology | None = None,
    timeout: float = 60.0,
    **kwargs: typing.Any,
) -> Communicator: ...
def join(
    invitation: str,
    devices: typing.Any = None,
    timeout: float = 60.0,
    **kwargs: typing.Any,
) -> Communicator: ...
def keygen() -> str: ...
def layout_convert(
    source: Layout,
    source_arrays: collections.abc.Sequence[typing.Any],
    source_blocks: typing.Any,
    source_first: typing.SupportsInt,
    target: Layout,
    target_arrays: collections.abc.Sequence[typing.Any],
    target_blocks: typing.Any,
    target_first: typing.SupportsInt,
    tokens: typing.SupportsInt,
    position: typing.SupportsInt,
    layers: tuple[typing.SupportsInt, typing.SupportsInt],
    heads: tuple[typing.SupportsInt, typing.SupportsInt],
    digest: typing.Any,
) -> int: ...
def layout_digest(
    layout: Layout,
    arrays: collections.abc.Sequence[typing.Any],
    blocks: typing.Any,
    first: typing.SupportsInt,
    tokens: typing.SupportsInt,
    position: typing.SupportsInt,
    layers: tuple[typing.SupportsInt, typing.SupportsInt],
    heads: tuple[typing.SupportsInt, typing.SupportsInt],
) -> int: ...
def layout_digests(
    layout: Layout,
    arrays: collections.abc.Sequence[typing.Any],
    blocks: typing.Any,
    first: typing.SupportsInt,
    tokens: typing.SupportsInt,
    position: typing.SupportsInt,
    layers: tuple[typing.SupportsInt, typing.SupportsInt],
    heads: tuple[typing.SupportsInt, typing.SupportsInt],
) -> typing.Any: ...
def layout_runs(
    source: Layout,
    source_blocks: typing.Any,
    source_first: typing.SupportsInt,
    target: Layout,
    target_blocks: typing.Any,
    target_first: typing.SupportsInt,
    tokens: typing.SupportsInt,
    layers: tuple[typing.SupportsInt, typing.SupportsInt],
    heads: tuple[typing.SupportsInt, typing.SupportsInt],
) -> list[tuple[int, int, typing.Any, int, typing.Any]]: ...
def marked_memory(array: typing.Any) -> tuple[Memory, StreamMark | None]:
    """
    (Memory.from_array(array), StreamMark.of(array)): to look at an array of a device takes microseconds.
    """

def plan_collective(
    call: str,
    nbytes: typing.SupportsIndex,
    ranks: typing.SupportsIndex,
    *,
    latency: float = 5e-06,
    bandwidth: float = 10000000000.0,
    injection: float = 0.0,
    reduction: float = 10000000000.0,
    overhead: float = 5e-07,
    dtype: typing.Any = "float32",
    root: typing.SupportsIndex = 0,
    algorithm: str | None = None,
    exact: bool = False,
) -> CollectivePlan:
    """
    The CollectivePlan of a call among ranks that are all alike, without a job. nbytes: size of the largest array of a rank. latency: seconds, one way; bandwidth: bytes per second of a link in one direction; injection: of all links of a rank together, 0: as bandwidth; reduction: bytes of inputs per second that a rank reduces; overhead: seconds that a rank spends on each message; algorithm, exact: as the call takes them. At most 256 ranks.
    """

def plan_islands(
    nbytes: typing.SupportsIndex,
    islands: collections.abc.Sequence[IslandCards],
    *,
    call: str = "all_reduce",
    border: collections.abc.Sequence[float] = [],
    inside_latency: float = 5e-06,
    nic_latency: float = 1e-05,
) -> IslandPlan:
    """
    Estimates a collective over islands (IslandCards): hierarchical, with shares in proportion to bandwidth, and flat. nbytes: size of the largest array of a card. call: "all_reduce", "reduce_scatter", "reduce", "all_gather" or "broadcast"; a root is in the first island. border: bandwidths of the links that each island, of one host, has to the others; default: the cards' NICs. Latencies in seconds. UnsupportedError: the call has no hierarchical plan.
    """

def prepare_weighted_sum(device: typing.Any, dtype: typing.Any) -> bool:
    """
    Loads the kernel of weighted_sum() in a device's memory. False: not yet, as it is being compiled or a held stream keeps the device waiting. Releases the GIL. UnsupportedError: there is none.
    """

def queue_copies(copies: collections.abc.Sequence[tuple[typing.Any, Memory]]) -> tuple[list[bool], list[StreamMark], typing.Any]:
    """
    Copies each array of a device into a Memory of as many bytes, on the stream that the array is produced on, and does not wait.
    (whether each copy was queued, marks behind them, the error of the first that failed or None): not queued where no stream is
    known, and not into memory of another device. The memories stay until the marks are reached.
    """

def row_batch(
    peer: Peer,
    local: ConnBuffer,
    at: typing.SupportsInt,
    remote: RemoteBuffer,
    rows: typing.Any,
    stride: typing.SupportsInt,
    first: typing.SupportsInt,
    nbytes: typing.SupportsInt,
) -> BlockBatch: ...
def runtimes() -> list[dict[str, typing.Any]]: ...
def settings() -> list[dict[str, typing.Any]]: ...
def suggest_library(variable: str, path: str | bytes | os.PathLike[str]) -> None: ...
def transports() -> list[dict[str, typing.Any]]: ...
def wait_all(works: collections.abc.Iterable[typing.Any], timeout: float | None = None) -> None:
    """
    Waits for every Work; raises the first error by index after all are complete.
    """

def wait_any(works: collections.abc.Iterable[typing.Any], timeout: float | None = None) -> int:
    """
    Index of a completed Work, the lowest. The Works belong to one Context.
    """

ANY_SOURCE: int = -1
ANY_TAG: int = -1

def weighted_sum(out: typing.Any, rows: typing.Any, weights: typing.Any, dtype: typing.Any, used: typing.Any = None) -> None:
    """
    Row t of `out` becomes the sum over k of weights[t, k] * row (t, k) of `rows`, in f32 and in the order of k, rounded to nearest even. `out`, `rows`: arrays whose bytes are elements of `dtype`, a floating type of at most 32 bits, both in CPU memory or both on one device, which then computes: behind no stream, and returns when the sums are in place. `weights`: float32, of shape (results, terms). `used`: bools of that shape; False leaves a term out, and its row is not read. Releases the GIL. InvalidArgumentError: sizes that do not fit. UnsupportedError: the device has no kernel, or not yet.
    """

version: str = "0.1.0"
wire_version: int
